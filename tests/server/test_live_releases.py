"""Clients of NVIDIA's own models, of old releases and new: their inputs by the names that their release has."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kserve import kserve_stream
from tiny_build import tiny_build, tiny_config
from tritonclient.utils import InferenceServerException
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
SAMPLED = {"temperature": ("FP32", [[1.0]]), "top_k": ("INT32", [[50]])}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    build = tiny_build(tmp_path_factory.mktemp("old"), tiny_config(tensorrt_llm="0.19.0"))
    with TritonServer(build, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        yield server


def texts(server: TritonServer, model: str, **inputs: tuple[str, Any]) -> list[bytes]:
    request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[8]]), **SAMPLED, **inputs}
    with kserve_stream(server.endpoints.grpc) as stream:
        return [response["text_output"][0][0] for response in stream.ask(model, **request)]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_client_of_an_old_release_seeds_by_the_old_name(old: TritonServer, model: str) -> None:
    answers = [texts(old, model, random_seed=("UINT64", [[seed]]), min_length=("INT32", [[4]])) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_trtkits_client_need_not_know_the_release(old: TritonServer) -> None:
    request = GenerateRequest("hello", 8, temperature=1.0, top_k=50, seed=1)
    with TritonClient(old.endpoints.grpc) as client:
        text = collect(client.generate(request), lambda _: None).text
    [plain] = texts(old, "tensorrt_llm_bls", random_seed=("UINT64", [[1]]), exclude_input_in_output=("BOOL", [[True]]))
    assert plain.decode() == text


def test_the_ensemble_of_an_old_release_has_no_newer_inputs(old: TritonServer) -> None:
    with pytest.raises(InferenceServerException, match="unexpected inference input 'seed'"):
        texts(old, "ensemble", seed=("UINT64", [[1]]))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_client_that_asks_for_measures_gets_the_times_of_its_answer(server: TritonServer, model: str) -> None:
    request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[20]]), "end_id": ("INT32", [[-1]])}
    before = time.time_ns()
    with kserve_stream(server.endpoints.grpc) as stream:
        [last] = stream.ask(model, **request, return_perf_metrics=("BOOL", [[True]]))
    names = ("arrival", "first_scheduled", "first_token", "last_token")
    times = [last[f"{name}_time_ns"][0][0] for name in names]
    moments = [before, *times, time.time_ns()]
    assert moments == sorted(moments)
    assert len(set(times[1:])) == 3


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_client_of_a_new_release_gets_the_numbers_of_tokens_it_asks_for(server: TritonServer, model: str) -> None:
    asked = {f"return_num_{kind}_tokens": ("BOOL", [[True]]) for kind in ("input", "output")}
    request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[8]]), "end_id": ("INT32", [[-1]])}
    with kserve_stream(server.endpoints.grpc) as stream:
        *_, last = stream.ask(model, **request, **asked, stream=("BOOL", [[True]]))
    assert last["num_output_tokens"] == [[8]]
    assert last["num_input_tokens"][0][0] > 0
