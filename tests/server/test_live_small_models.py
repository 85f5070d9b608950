"""preprocessing and postprocessing asked by a plain client: what they refuse, and by which name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kserve import kserve_stream
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
KINDS = {np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32", np.dtype(object): "BYTES"}


@pytest.fixture
def plain(server: TritonServer) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.endpoints.grpc) as connected:
        yield connected


def ask(client: InferenceServerClient, model: str, **arrays: np.ndarray[Any, Any]) -> Any:
    inputs = []
    for name, array in arrays.items():
        inputs.append(InferInput(name, list(array.shape), KINDS[array.dtype]))
        inputs[-1].set_data_from_numpy(array)
    return client.infer(model, inputs)


def texts(*rows: list[bytes]) -> np.ndarray[Any, Any]:
    return np.array(rows, dtype=object)


def numbers(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int32)


def test_the_text_of_each_row_ends_at_its_length(plain: InferenceServerClient) -> None:
    ids = ask(plain, "preprocessing", QUERY=texts([b"the sun"]), REQUEST_OUTPUT_LEN=numbers([[1]])).as_numpy("INPUT_ID")
    tokens = np.stack([ids, ids], axis=1)
    whole, none = ask(
        plain, "postprocessing", TOKENS_BATCH=tokens, SEQUENCE_LENGTH=numbers([[ids.shape[1], 0]])
    ).as_numpy("OUTPUT")[0]
    assert (whole, none) == (b"the sun", b"")


@pytest.mark.parametrize("lengths", [[-1], [3], [1, 1], []])
def test_lengths_that_do_not_fit_the_tokens_are_refused(plain: InferenceServerClient, lengths: list[int]) -> None:
    with pytest.raises(InferenceServerException, match="REQ-INPUT: input SEQUENCE_LENGTH is "):
        ask(plain, "postprocessing", TOKENS_BATCH=numbers([[[5, 6]]]), SEQUENCE_LENGTH=numbers([lengths]))


@pytest.mark.parametrize(
    ("query", "message"), [(b"", "REQ-EMPTY: input QUERY"), (b"\xff", "REQ-INPUT: input QUERY is not UTF-8")]
)
def test_a_prompt_that_is_none_is_refused_before_the_engine_sees_it(
    plain: InferenceServerClient, query: bytes, message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message):
        ask(plain, "preprocessing", QUERY=texts([b"a"], [query]), REQUEST_OUTPUT_LEN=numbers([[1], [1]]))


def test_a_stop_that_names_no_request_stops_none(server: TritonServer) -> None:
    one = {"input_lengths": ("INT32", [[1]]), "input_ids": ("INT32", [[5]]), "end_id": ("INT32", [[-1]])}
    with kserve_stream(server.endpoints.grpc) as under_way, kserve_stream(server.endpoints.grpc) as stopping:
        under_way.send("tensorrt_llm", **one, request_output_len=("INT32", [[100]]), streaming=("BOOL", [[True]]))
        responses = under_way.responses()
        next(responses)
        with pytest.raises(InferenceServerException, match="REQ-INPUT: input stop is true, and the request has no id"):
            stopping.ask("tensorrt_llm", **one, request_output_len=("INT32", [[1]]), stop=("BOOL", [[True]]))
        assert len(list(responses)) == 99


def test_rows_with_fewer_biased_words_are_padded(plain: InferenceServerClient) -> None:
    bias = ask(
        plain,
        "preprocessing",
        QUERY=texts([b"a"], [b"a"]),
        REQUEST_OUTPUT_LEN=numbers([[1], [1]]),
        EMBEDDING_BIAS_WORDS=texts([b"a", b""], [b"a", b"b"]),
        EMBEDDING_BIAS_WEIGHTS=np.array([[-1, 0], [-1, -1]], dtype=np.float32),
    ).as_numpy("EMBEDDING_BIAS")
    assert np.count_nonzero(bias[0]) < np.count_nonzero(bias[1])
