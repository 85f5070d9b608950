"""The client's messages, read back the way a server reads them."""

from dataclasses import replace

import numpy as np
import pytest
from trtkit.client.request import GenerateRequest
from trtkit.client.tensors import chunk_of, message_of, settled, values_of
from trtkit.errors import RequestError, ServerError


def sent(request: GenerateRequest) -> dict[str, list[object]]:
    message = message_of(request)
    kinds = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
    values: dict[str, list[object]] = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        assert next(iter(tensor.shape)) == 1
        if tensor.datatype == "BYTES":
            values[tensor.name] = split(raw)
            assert tensor.shape[1] == len(values[tensor.name])
        else:
            values[tensor.name] = np.frombuffer(raw, kinds[tensor.datatype]).tolist()
    return values


def split(raw: bytes) -> list[bytes]:
    parts = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        parts.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return parts


def test_a_greedy_request_says_no_more_than_it_must() -> None:
    assert sent(GenerateRequest("héllo", 5)) == {
        "text_input": ["héllo".encode()],
        "max_tokens": [5],
        "exclude_input_in_output": [True],
        "top_k": [1],
    }


@pytest.mark.parametrize("can", [True, False])
def test_streaming_that_is_left_open_is_what_the_server_can_and_a_choice_is_kept(can: bool) -> None:
    assert settled(GenerateRequest("a", 5), lambda: can).stream is can
    assert settled(GenerateRequest("a", 5, stream=not can), lambda: can).stream is not can


def test_a_server_that_does_not_say_is_asked_as_if_it_streamed() -> None:
    def unreachable() -> bool:
        raise ServerError("nobody answers", "start it")

    assert settled(GenerateRequest("a", 5), unreachable).stream is True


def test_a_temperature_alone_samples_over_everything() -> None:
    values = sent(GenerateRequest("a", 5, temperature=0.5, seed=2**63))
    assert (values["top_k"], values["top_p"], values["temperature"]) == ([0], [1.0], [0.5])
    assert values["seed"] == [2**63]


def test_every_field_reaches_the_message() -> None:
    request = GenerateRequest(
        "a", 5, 1.0, 7, 0.5, 3, repetition_penalty=1.5, stop_words=("x", "yz"), num_draft_tokens=0, stream=False,
        wants_cache_figures=True,
    )  # fmt: skip
    values = sent(request)
    assert values["top_k"] == [7]
    assert values["top_p"] == [0.5]
    assert values["stop_words"] == [b"x", b"yz"]
    assert values["num_draft_tokens"] == [0]
    assert values["repetition_penalty"] == [1.5]
    assert values["return_perf_metrics"] == [True]
    assert values["stream"] == [False]


def test_an_answer_without_our_outputs_is_refused_by_the_missing_name() -> None:
    with pytest.raises(ServerError, match="no output text_output"):
        chunk_of({}, 0)


def test_messages_go_to_the_servers_template_by_a_parameter() -> None:
    assert message_of(GenerateRequest("[]", 5, is_chat=True)).parameters["apply_chat_template"].bool_param
    assert not message_of(GenerateRequest("hello", 5)).parameters


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest("a", 2**32 + 5),
        GenerateRequest("a", 5, num_draft_tokens=2**32),
        GenerateRequest("a", 5, temperature=1.0, top_k=2**31),
        GenerateRequest("a", 5, seed=2**64),
        GenerateRequest("a", 5, seed=-1),
    ],
)
def test_a_number_that_would_arrive_as_another_one_is_refused(request_: GenerateRequest) -> None:
    with pytest.raises(RequestError, match="must be between"):
        values_of(request_)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("max_tokens", "4", "max_tokens must be a whole number"),
        ("max_tokens", 4.0, "max_tokens must be a whole number"),
        ("max_tokens", True, "max_tokens must be a whole number"),
        ("temperature", "1", "temperature must be a number"),
        ("text", None, "text_input must be text"),
        ("text", b"a", "text_input must be text"),
        ("stop_words", "ab", "stop_words must be several texts"),
        ("stop_words", None, "stop_words must be several texts"),
        ("stop_words", (1,), "stop_words must be text"),
        ("deadline_s", 0, "deadline_s must be above 0"),
        ("deadline_s", -1.0, "deadline_s must be above 0"),
        ("deadline_s", float("nan"), "deadline_s must be above 0"),
        ("deadline_s", float("inf"), "deadline_s must be above 0"),
        ("deadline_s", "5", "deadline_s must be above 0"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(field: str, value: object, complaint: str) -> None:
    with pytest.raises(RequestError, match=f"REQ-INPUT: .*{complaint}"):
        message_of(replace(GenerateRequest("a", 4), **{field: value}))  # type: ignore[arg-type]


def test_whole_numbers_serve_as_rates_too() -> None:
    values = values_of(GenerateRequest("a", 4, temperature=1, top_p=1, repetition_penalty=2))
    assert (values["temperature"], values["top_p"], values["repetition_penalty"]) == (1.0, 1.0, 2.0)


def test_numbers_of_numpy_become_pythons() -> None:
    values = values_of(GenerateRequest("a", np.int32(4), temperature=np.float32(0.5)))  # type: ignore[arg-type]
    assert (type(values["max_tokens"]), type(values["temperature"])) == (int, float)


def test_text_that_is_not_utf8_is_refused() -> None:
    for request in (GenerateRequest("a\udcff", 5), GenerateRequest("a", 5, stop_words=("\udcff",))):
        with pytest.raises(RequestError, match="not UTF-8"):
            message_of(request)
