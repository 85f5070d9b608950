"""The requests of an aiperf run are prompts here, and prompts written here are requests there."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiperf_program import AiperfRun, run_aiperf
from tiny_build import tiny_build
from trtkit.errors import InputError
from trtkit.evaluate.bench.plan import BenchPrompt
from trtkit.evaluate.bench.traffic import prompts_jsonl, read_trace, trace_jsonl
from trtkit.prompts.files import Prompt, read_prompts
from trtkit.server.triton_server import TritonServer
from trtkit.serving.contract import BLS

PROMPTS = tuple(
    BenchPrompt(text, length)
    for text, length in (("Grüße & <b>\"both\"</b>\u2028'x'", 3), ("one\ntwo", 5), ("def f(x):", 4), ("{{ text }}", 2))
)


def inputs(*payloads: Any) -> str:
    return json.dumps({"data": [{"session_id": str(i), "payloads": [each]} for i, each in enumerate(payloads)]})


def test_requests_of_an_aiperf_run_are_prompts(tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    chat = {"messages": [{"role": "user", "content": "Hello!"}], "max_completion_tokens": 9, "model": "m"}
    path.write_text(inputs({"text_input": "a", "max_tokens": 3, "stream": True}, {"prompt": "b"}, chat))
    assert read_prompts(path) == [
        Prompt("inputs-1", "inputs", "a", output_length=3),
        Prompt("inputs-2", "inputs", "b"),
        Prompt("inputs-3", "inputs", messages=(("user", "Hello!"),), output_length=9),
    ]


@pytest.mark.parametrize("text", ["{}", "[", '{"data": [{}]}', inputs({"images": []}), inputs(3), inputs({"text": ""})])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not what aiperf writes") as caught:
        read_prompts(path)
    assert caught.value.code == "PROMPTS"


@pytest.fixture(scope="module")
def aiperf() -> str:
    """The real program, of an environment of its own, on the PATH."""
    program = shutil.which("aiperf")
    if program is None:
        pytest.skip("aiperf is not on the PATH: pip install aiperf==0.13.0 into an environment of its own")
    return program


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with TritonServer(tiny_build(tmp_path_factory.mktemp("tiny"))) as server:
        yield server


def asked_of(server: TritonServer, input_file: Path, *, schedule: bool = False) -> AiperfRun:
    url = f"http://127.0.0.1:{server.endpoints.http_port}"
    tokenizer = server.folders.build / "tokenizer"
    return AiperfRun(url, BLS, tokenizer, input_file, len(PROMPTS), schedule=schedule)


@pytest.mark.slow
@pytest.mark.tritonserver
def test_the_real_aiperf_sends_the_prompts_that_are_written_for_it_and_they_come_back(
    aiperf: str, server: TritonServer, tmp_path: Path
) -> None:
    (tmp_path / "prompts.jsonl").write_text(prompts_jsonl(PROMPTS), encoding="utf-8")
    result = run_aiperf(aiperf, asked_of(server, tmp_path / "prompts.jsonl"), tmp_path / "run")
    expected = [(prompt.text, prompt.max_new_tokens) for prompt in PROMPTS]
    assert result.prompts == expected
    back = [(prompt.text, prompt.output_length) for prompt in read_prompts(result.inputs)]
    assert back == expected == [(p.text, p.output_length) for p in read_prompts(tmp_path / "prompts.jsonl")]


@pytest.mark.slow
@pytest.mark.tritonserver
def test_the_real_aiperf_keeps_the_times_of_a_trace_that_is_written_for_it(
    aiperf: str, server: TritonServer, tmp_path: Path
) -> None:
    times_s = [0.0, 0.4, 1.1, 1.3]
    path = tmp_path / "trace.jsonl"
    path.write_text(trace_jsonl(PROMPTS, times_s), encoding="utf-8")
    assert [prompt.at_s for prompt in read_trace(path, 8)] == times_s
    result = run_aiperf(aiperf, asked_of(server, path, schedule=True), tmp_path / "run")
    assert result.prompts == [(prompt.text, prompt.max_new_tokens) for prompt in PROMPTS]
    assert result.times_s == pytest.approx(times_s, abs=0.3)
