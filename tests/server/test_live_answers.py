"""A real server on a tiny build: every way to ask gives the engine's own tokens."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kserve import kserve_stream
from tritonclient.utils import InferenceServerException
from trtkit.client.completion import Completion, collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.engines.inspect import read_engine
from trtkit.errors import RequestError, ServerError
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams
from trtkit.server.triton_server import TritonServer
from trtkit.serving.text import TextTokenizer

pytestmark = pytest.mark.tritonserver
PROMPTS = ("hello world", "the rest is the other", "日本 👩‍👩‍👧", "a")
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def tokenizer(build: Path) -> TextTokenizer:
    return TextTokenizer.load(build / "tokenizer")


@pytest.fixture(scope="module")
def engine(build: Path) -> Engine:
    checkpoint = read_engine(build / "engines" / "target").checkpoint
    assert checkpoint is not None
    return Engine.load(checkpoint, max_batch_size=1, max_seq_len=160, num_threads=1)


def ask(client: TritonClient, text: str, **options: Any) -> Completion:
    return collect(client.generate(GenerateRequest(text, NUM_TOKENS, deadline_s=60, **options)), lambda _: None)


def of_the_engine(engine: Engine, tokenizer: TextTokenizer, text: str, sampling: SamplingParams) -> tuple[int, ...]:
    prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
    steps = engine.generate(GenerationRequest("r", prompt, NUM_TOKENS, sampling, end_id=2))
    return tuple(token for step in steps for token in step.token_ids if token != 2)


@pytest.mark.parametrize("text", PROMPTS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_draft_tokens", [None, 0, 1, 4])
def test_answers_are_the_engines_with_and_without_drafts_streamed_and_whole(
    client: TritonClient,
    engine: Engine,
    tokenizer: TextTokenizer,
    text: str,
    stream: bool,
    num_draft_tokens: int | None,
) -> None:
    answer = ask(client, text, stream=stream, num_draft_tokens=num_draft_tokens)
    assert answer.token_ids == of_the_engine(engine, tokenizer, text, SamplingParams())
    assert answer.text == tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    assert answer.figures.num_output_tokens == len(answer.token_ids)
    assert answer.figures.num_prompt_tokens == len(tokenizer.encode(text, add_special_tokens=True))


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_sampled_answers_are_the_engines_with_and_without_drafts(
    client: TritonClient, engine: Engine, tokenizer: TextTokenizer, num_draft_tokens: int
) -> None:
    sampling = SamplingParams(temperature=1.5, top_k=0, top_p=0.9, seed=11)
    answer = ask(client, "hello", temperature=1.5, top_p=0.9, seed=11, num_draft_tokens=num_draft_tokens)
    assert answer.token_ids == of_the_engine(engine, tokenizer, "hello", sampling)
    assert answer.token_ids != of_the_engine(engine, tokenizer, "hello", SamplingParams())


def test_drafts_are_made_and_some_accepted(client: TritonClient) -> None:
    figures = [ask(client, text).figures for text in PROMPTS]
    accepted = sum(each.num_accepted_tokens for each in figures)
    drafted = sum(each.num_draft_tokens for each in figures)
    assert 0 < accepted < drafted
    for each in figures:
        assert each.num_accepted_tokens + each.num_target_passes == each.num_output_tokens
        assert each.acceptance_rate == pytest.approx(each.num_accepted_tokens / each.num_draft_tokens)
        assert each.draft_time_ms > 0


def test_a_repeated_prompt_finds_its_cache(client: TritonClient) -> None:
    text = "that is a sentence of more than thirty two tokens, so that one block at least is full"
    ask(client, text)
    reused = ask(client, text, wants_cache_figures=True).figures.num_reused_blocks
    assert reused is not None
    assert reused >= 1


def test_the_ensemble_gives_the_same_text_as_the_bls_model(client: TritonClient, server: TritonServer) -> None:
    values = {"max_tokens": ("INT32", [[NUM_TOKENS]]), "exclude_input_in_output": ("BOOL", [[True]])}
    with kserve_stream(server.endpoints.grpc) as stream:
        for text in PROMPTS:
            [response] = stream.ask("ensemble", text_input=("BYTES", [[text.encode()]]), **values)
            assert response["text_output"][0][0].decode() == ask(client, text).text


def test_a_client_of_nvidias_repository_gets_prompt_and_answer_in_one_text(
    client: TritonClient, server: TritonServer
) -> None:
    request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[NUM_TOKENS]])}
    with kserve_stream(server.endpoints.grpc) as stream:
        for model in ("ensemble", "tensorrt_llm_bls"):
            [response] = stream.ask(model, **request)
            assert response["text_output"][0][0].decode() == "hello" + ask(client, "hello").text


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_a_minimum_length_longer_than_a_draft_is_honoured(server: TritonServer, num_draft_tokens: int) -> None:
    request = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[NUM_TOKENS]])}
    with kserve_stream(server.endpoints.grpc) as stream:
        [response] = stream.ask(
            "tensorrt_llm_bls",
            min_tokens=("INT32", [[NUM_TOKENS]]),
            num_draft_tokens=("INT32", [[num_draft_tokens]]),
            **request,
        )
    assert response["num_output_tokens"] == [[NUM_TOKENS]]


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "ensemble"])
def test_a_batch_of_prompts_is_answered_row_by_row(client: TritonClient, server: TritonServer, model: str) -> None:
    texts: dict[int, str] = dict.fromkeys(range(len(PROMPTS)), "")
    with kserve_stream(server.endpoints.grpc) as stream:
        responses = stream.ask(
            model,
            text_input=("BYTES", [[text.encode()] for text in PROMPTS]),
            max_tokens=("INT32", [[NUM_TOKENS]] * len(PROMPTS)),
            stream=("BOOL", [[model == "tensorrt_llm_bls"]] * len(PROMPTS)),
            exclude_input_in_output=("BOOL", [[True]] * len(PROMPTS)),
        )
    for response in responses:
        texts[response["batch_index"][0][0]] += response["text_output"][0][0].decode()
    assert list(texts.values()) == [ask(client, text).text for text in PROMPTS]


def test_the_engine_model_verifies_drafts_as_tensorrt_llm_does(
    server: TritonServer, engine: Engine, tokenizer: TextTokenizer
) -> None:
    prompt = tokenizer.encode("hello", add_special_tokens=True)
    right = list(of_the_engine(engine, tokenizer, "hello", SamplingParams()))
    with kserve_stream(server.endpoints.grpc) as stream:
        [response] = stream.ask(
            "tensorrt_llm",
            input_ids=("INT32", [prompt]),
            input_lengths=("INT32", [[len(prompt)]]),
            request_output_len=("INT32", [[4]]),
            draft_input_ids=("INT32", [[right[0], right[1], (right[2] + 1) % 300]]),
            exclude_input_in_output=("BOOL", [[True]]),
            return_perf_metrics=("BOOL", [[True]]),
        )
    assert response["output_ids"] == [[right[:3]]]
    assert response["sequence_length"] == [[3]]
    assert response["total_accepted_draft_tokens"] == [[2]]
    assert response["total_draft_tokens"] == [[3]]


def test_stop_words_end_the_text_before_them(client: TritonClient) -> None:
    whole = ask(client, "hello")
    word = whole.text[5:7]
    assert word.isascii()
    for options in ({"num_draft_tokens": 0}, {}, {"stream": False}):
        answer = ask(client, "hello", stop_words=(word,), **options)
        assert answer.text == whole.text[: whole.text.index(word)]
        assert answer.figures.finish_reason == "stop_words"


def test_many_answers_at_once_are_the_answers_one_by_one(client: TritonClient) -> None:
    texts = [f"{text} {number}" for number in range(6) for text in PROMPTS]
    answers: dict[str, Completion] = {}

    def keep(text: str, drafts: int) -> None:
        answers[text] = ask(client, text, num_draft_tokens=drafts)

    threads = [threading.Thread(target=keep, args=(text, number % 5)) for number, text in enumerate(texts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(texts)
    for text in texts[:8]:
        assert answers[text].token_ids == ask(client, text).token_ids


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_a_cancelled_answer_leaves_the_server_healthy(client: TritonClient, num_draft_tokens: int) -> None:
    """Cancelled at every step of an answer: before its first piece, behind each of them, and behind its last."""
    before = ask(client, "hello", num_draft_tokens=num_draft_tokens)
    request = GenerateRequest("hello", NUM_TOKENS, num_draft_tokens=num_draft_tokens)
    for after_chunks in range(len(list(client.generate(request))) + 1):
        answer = client.generate(request)
        chunks = iter(answer)
        for _ in range(after_chunks):
            next(chunks)
        answer.cancel()
        list(chunks)
        assert ask(client, "hello", num_draft_tokens=num_draft_tokens).token_ids == before.token_ids


def test_a_deadline_ends_an_answer_with_an_error(client: TritonClient) -> None:
    with pytest.raises(ServerError, match="DEADLINE"):
        list(client.generate(GenerateRequest("hello", 140, deadline_s=0.01)))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerateRequest("", 5), "REQ-EMPTY: input text_input"),
        (GenerateRequest("hello", 999), "REQ-LENGTH: input max_tokens"),
        (GenerateRequest("hello " * 50, 5), "REQ-LENGTH: input text_input"),
        (GenerateRequest("hello", 5, num_draft_tokens=5), "SPEC-K: input num_draft_tokens"),
        (GenerateRequest("hello", 5, temperature=1.0, top_p=7.0), "REQ-SAMPLING: top_p"),
        (GenerateRequest("hello", 5, temperature=float("nan")), "REQ-SAMPLING: temperature"),
        (GenerateRequest("hello", 5, temperature=-1.0), "REQ-SAMPLING: temperature"),
        (GenerateRequest("hello", 5, repetition_penalty=-1.0), "REQ-SAMPLING: repetition_penalty"),
    ],
)
def test_an_impossible_request_fails_alone_and_names_its_input(
    client: TritonClient, request_: GenerateRequest, message: str
) -> None:
    with pytest.raises(RequestError) as error:
        list(client.generate(request_))
    assert str(error.value).startswith(message)
    assert ask(client, "hello").token_ids


def test_malformed_tensors_are_refused_and_the_next_request_is_answered(server: TritonServer) -> None:
    good = {"input_ids": ("INT32", [[3, 4]]), "input_lengths": ("INT32", [[2]]), "request_output_len": ("INT32", [[3]])}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"input_lengths": ("INT32", [[-2]])}, "input_lengths"),
        ({"input_ids": ("INT32", [[3, 400]])}, "input_ids: token 400"),
        ({"draft_input_ids": ("INT32", [[-1]])}, "draft_input_ids: token -1"),
        ({"end_id": ("INT32", [[400]])}, "end_id: token 400"),
        ({"request_output_len": ("INT32", [[-1]])}, "max_new_tokens"),
        ({"temperature": ("FP32", [[float("nan")]]), "runtime_top_k": ("INT32", [[5]])}, "temperature"),
        ({"draft_input_ids": ("INT32", [[1] * 9])}, "draft_input_ids"),
        ({"input_ids": ("FP32", [[3, 4]])}, "input_ids"),
        ({"input_ids": ("INT32", [[[3, 4]]])}, "input_ids"),
        ({"no_such_input": ("INT32", [[1]])}, "no_such_input"),
        ({"beam_width": ("INT32", [[5]])}, "beam_width"),
        ({"draft_input_ids": ("INT32", [[1, 2]]), "draft_logits": ("FP32", [[[0.0] * 9] * 2])}, "draft_logits"),
        ({"embedding_bias": ("FP32", [[0.0] * 999])}, "embedding_bias"),
    ]
    with kserve_stream(server.endpoints.grpc) as stream:
        for change, named in bad:
            with pytest.raises(InferenceServerException, match=named):
                stream.ask("tensorrt_llm", **{**good, **change})
            assert stream.ask("tensorrt_llm", **good)


def test_malformed_tensors_of_a_client_are_refused_by_name_and_the_next_request_is_answered(
    server: TritonServer,
) -> None:
    good = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[3]])}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"text_input": ("INT32", [[1]])}, "text_input"),
        ({"text_input": ("BYTES", [[b"\xff\xfe"]])}, "text_input"),
        ({"text_input": ("BYTES", [[b"a", b"b"]])}, "text_input"),
        ({"max_tokens": ("INT32", [[-3]])}, "max_tokens"),
        ({"max_tokens": ("FP32", [[3]])}, "max_tokens"),
        ({"temperature": ("FP32", [[float("nan")]]), "top_k": ("INT32", [[5]])}, "temperature"),
        ({"top_p": ("FP32", [[float("inf")]]), "top_k": ("INT32", [[5]])}, "top_p"),
        ({"end_id": ("INT32", [[10**6]])}, "end_id"),
        ({"stop_words": ("BYTES", [[b"\xff"]])}, "stop_words"),
        ({"num_draft_tokens": ("INT32", [[-1]])}, "num_draft_tokens"),
    ]
    with kserve_stream(server.endpoints.grpc) as stream:
        for model in ("tensorrt_llm_bls", "ensemble"):
            for change, named in bad[: None if model == "tensorrt_llm_bls" else -3]:
                with pytest.raises(InferenceServerException) as error:
                    stream.ask(model, **{**good, **change})
                assert named in str(error.value).replace("QUERY", "text_input"), (model, named)
            assert stream.ask(model, **good)


def test_nvidias_stop_request_ends_the_answer_with_its_id(server: TritonServer) -> None:
    request = {"input_ids": ("INT32", [[3, 4]]), "input_lengths": ("INT32", [[2]])}
    with kserve_stream(server.endpoints.grpc) as stream, kserve_stream(server.endpoints.grpc) as other:
        streaming = {"request_output_len": ("INT32", [[150]]), "streaming": ("BOOL", [[True]])}
        stream.send("tensorrt_llm", "mine", **request, **streaming)
        responses = stream.responses()
        tokens = next(responses)["output_ids"][0][0]
        stop = {"request_output_len": ("INT32", [[1]]), "stop": ("BOOL", [[True]])}
        assert other.ask("tensorrt_llm", "mine", **request, **stop) == []
        tokens += [token for response in responses for token in response["output_ids"][0][0]]
    assert len(tokens) < 150


def http(server: TritonServer, path: str, **values: Any) -> list[dict[str, Any]]:
    """POST JSON and read the answer, or the events of an event stream."""
    url = f"http://{server.endpoints.host}:{server.endpoints.http_port}/v2/models/{path}"
    request = urllib.request.Request(url, json.dumps(values).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        body = response.read().decode()
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.strip()]


def test_http_streams_the_same_text(client: TritonClient, server: TritonServer) -> None:
    expected = ask(client, "hello").text
    request = {"text_input": "hello", "max_tokens": NUM_TOKENS}
    events = http(server, "tensorrt_llm_bls/generate_stream", **request, stream=True)
    assert "".join(event["text_output"] for event in events) == expected
    assert len(events) > 2
    [whole] = http(server, "tensorrt_llm_bls/generate", **request, exclude_input_in_output=True)
    assert whole["text_output"] == expected
    assert whole["finish_reason"] == "length"
    assert len(http(server, "ensemble/generate_stream", **request, stream=True)) == NUM_TOKENS


def test_http_errors_name_the_input(server: TritonServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        http(server, "tensorrt_llm_bls/generate", text_input="hello", max_tokens=0)
    assert "input max_tokens must be at least 1" in error.value.read().decode()


def test_counters_of_drafts_and_cache_stand_beside_tritons_own(client: TritonClient, server: TritonServer) -> None:
    before = counters(server)
    figures = ask(client, "a prompt for the counters").figures
    after = counters(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    bls = "tensorrt_llm_bls"
    assert grown["trtkit_answers", bls] == 1
    assert grown["trtkit_output_tokens", bls] == figures.num_output_tokens
    assert grown["trtkit_draft_tokens", bls] == figures.num_draft_tokens
    assert grown["trtkit_accepted_draft_tokens", bls] == figures.num_accepted_tokens
    assert grown["trtkit_engine_requests", "tensorrt_llm"] == figures.num_target_passes
    assert 0 < grown["trtkit_engine_reused_tokens", "tensorrt_llm"]
    assert grown["trtkit_engine_reused_tokens", "tensorrt_llm"] < grown["trtkit_engine_prompt_tokens", "tensorrt_llm"]


def counters(server: TritonServer) -> dict[tuple[str, str], float]:
    """trtkit's counters once no answer is under way: they are added to just after an answer was sent."""
    url = f"http://{server.endpoints.host}:{server.endpoints.metrics_port}/metrics"
    read: dict[tuple[str, str], float] = {}
    while True:
        before = read
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        found = re.findall(r'^(trtkit_\w+)\{model="(\w+)"\} (\S+)$', text, flags=re.M)
        read = {(name, model): float(value) for name, model, value in found}
        if read == before:
            return read
        time.sleep(0.2)
