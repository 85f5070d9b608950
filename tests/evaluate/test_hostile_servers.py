"""A check or a bench of a server that keeps half of the protocol, dies, or hangs: one message, exit code 4, no hang."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hostile_servers import (
    Answer,
    Output,
    final,
    hangs,
    is_killed,
    kserve_server,
    openai_server,
    says,
    stops_short,
    text,
)
from parity_samples import answer, header, step
from trtkit.cli.main import cli
from trtkit.evaluate.endpoints import patience
from trtkit.evaluate.endpoints.deployment import Target, parse_target
from trtkit.evaluate.oracle.record import ParityRecord, write_record

STARTED_S = 60
STOPS_S = 20


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    write_record(path, ParityRecord(header(), (answer("a", step(5, 6, 3.0), step(7, 8, 3.0)),)))
    return path


def check(url: str, record: Path) -> Result:
    command = ["parity", "check", url, "--record", str(record), "--out", str(record.parent / "out")]
    return CliRunner().invoke(cli, command)


def assert_is_said(result: Result, code: str) -> None:
    assert result.exit_code == 4, (result.exception, result.stderr)
    assert code in result.stderr and "Fix: " in result.stderr


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        final()[:2],
        final(text_output=("text_output", "BYTES", (1, 0), b"")),
        final(text_output=("text_output", "INT32", (1, 1), np.int32(1).tobytes())),
        final(text_output=text("text_output", b"\xff")),
        final(output_ids=("output_ids", "BYTES", (1, 1), b"\x01\0\0\0a")),
        final(output_ids=("output_ids", "FP32", (1, 1), np.float32(1.5).tobytes())),
        final(output_ids=("output_ids", "INT32", (1, 7), np.int32(1).tobytes())),
        final(output_ids=("output_ids", "WORD", (1, 1), b"abcd")),
    ],
    ids=["nothing", "no figures", "no text", "a number", "no UTF-8", "bytes", "fractions", "shape", "dtype"],
)
@pytest.mark.parametrize("command", ["check", "bench"])
def test_an_answer_that_breaks_the_contract_is_said(command: str, outputs: list[Output], record: Path) -> None:
    with kserve_server(outputs) as url:
        if command == "check":
            result = check(url, record)
        else:
            bench = ["bench", url, "--draft-len", "1", "--no-plot", "--out", str(record.parent / "out")]
            result = CliRunner().invoke(cli, bench)
    assert_is_said(result, "SERVER" if len(outputs) < 3 else "CLIENT-CONTRACT")


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [("text_output", "BYTES", (0,), b"")],
        [("text_output", "INT32", (1,), np.int32(1).tobytes())],
        [text("text_output", b"\xff")],
    ],
    ids=["nothing", "empty", "a number", "no UTF-8"],
)
def test_an_llmapi_model_that_sends_no_text_is_said(outputs: list[Output], record: Path) -> None:
    with kserve_server(outputs, "tensorrt_llm") as url:
        assert_is_said(check(url, record), "CLIENT-CONTRACT" if outputs else "SERVER")


@pytest.mark.parametrize("models", ["abc", [{"name": "m"}], ["m"], {"id": "m"}, []], ids=str)
def test_a_list_of_models_that_is_none_is_said(models: Any, record: Path) -> None:
    with openai_server(hangs, models) as url:
        assert_is_said(check(url, record), "OPENAI")


@pytest.mark.parametrize(
    "answer",
    [
        stops_short,
        is_killed,
        says({"choices": [None]}),
        says({"choices": "abc"}),
        says({"choices": {"a": 1}}),
        says({"choices": [{"text": 5}]}),
        says({"choices": [{"text": "a", "token_ids": ["x"]}]}),
        says({"choices": [{"text": "a", "token_ids": [1.5]}]}),
        says({"choices": [{"text": "a", "logprobs": [1]}]}),
        says({"choices": [{"text": "a", "logprobs": {"tokens": ["token_id:x"]}}]}),
        says({"choices": [{"text": "a"}], "usage": [1]}),
        says({"choices": [{"text": "a"}], "usage": {"prompt_tokens": "many"}}),
        says({"error": {"message": "out of memory"}}),
    ],
)
def test_a_completion_that_is_none_is_said_and_not_judged(answer: Answer, record: Path) -> None:
    with openai_server(answer) as url:
        assert_is_said(check(url, record), "OPENAI")


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:x/v1", "http://h:1 2/v1", "http:///v1", "http://[::1/v1", "http://h:99999/v1"),
        *("grpc://h:99999", "grpc://h:0", "grpc://h", "grpc://:8001", "grpc:// h:8001", "grpc://h:8001/v1"),
        *("grpc://::1:8001", "grpc://[::1:8001", "grpc://me@h:8001", "grpc://h:8001?a=b"),
    ],
)
def test_a_url_that_names_no_server_is_refused(url: str, record: Path) -> None:
    result = check(url, record)
    assert result.exit_code == 2 and "URL" in result.stderr, (result.exception, result.stderr)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://127.0.0.1:8001", "127.0.0.1:8001"),
        ("grpc://gpu-box.example:8001/", "gpu-box.example:8001"),
        ("grpc://[2001:db8::7]:8001", "[2001:db8::7]:8001"),
    ],
)
def test_a_server_is_named_by_host_and_port(url: str, address: str) -> None:
    assert parse_target(url) == Target(url, address=address)


def test_a_server_on_ipv6_is_asked(record: Path) -> None:
    try:
        with kserve_server(final(), host="[::1]") as url:
            assert url.startswith("grpc://[::1]:")
            assert check(url, record).exit_code == 1  # it says other tokens than the record
    except RuntimeError as error:
        pytest.skip(f"no IPv6 here: {error}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("protocol", ["grpc", "openai"])
def test_a_check_of_a_server_that_hangs_can_be_interrupted(protocol: str, number: signal.Signals, record: Path) -> None:
    with kserve_server(None) if protocol == "grpc" else openai_server(hangs) as url:
        command = [sys.executable, "-P", "-c", "from trtkit.cli.main import cli; cli()", "parity", "check", url]
        command += ["--record", str(record), "--out", str(record.parent / "out")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            wait_until_it_asks(process)
            process.send_signal(number)
            _, said = process.communicate(timeout=STOPS_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == (130 if number == signal.SIGINT else 143), said


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LONGEST_SILENCE_S", 1.0)


def says_a_word_and_hangs(handler: Any) -> None:
    handler.event({"choices": [{"text": "a"}]})
    hangs(handler)


SILENT = {
    "grpc": lambda: kserve_server(None),
    "llmapi": lambda: kserve_server(None, "tensorrt_llm"),
    "openai": lambda: openai_server(hangs),
    "openai, after a word": lambda: openai_server(says_a_word_and_hangs),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("protocol", SILENT)
def test_a_check_of_a_server_that_falls_silent_ends(protocol: str, record: Path) -> None:
    with SILENT[protocol]() as url:
        result = check(url, record)
    assert_is_said(result, "SERVER-SILENT: the server took a request, and then nothing came for 1 s")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "command",
    [
        ("bench", "--draft-len", "1", "--concurrency", "2"),
        ("bench", "--rate", "100"),
        ("tune", "--draft-len", "1", "--concurrency", "1"),
    ],
    ids=" ".join,
)
def test_a_load_on_a_server_that_never_answers_ends(command: tuple[str, ...], tmp_path: Path) -> None:
    name, *options = command
    with kserve_server(None) as url:
        result = CliRunner().invoke(cli, [name, url, *options, "--no-plot", "--out", str(tmp_path)])
    assert_is_said(result, "SERVER-SILENT")


def wait_until_it_asks(process: subprocess.Popen[str]) -> None:
    """Until two threads wait: the main one for the other, which waits for the server."""
    until = time.monotonic() + STARTED_S
    while time.monotonic() < until and process.poll() is None:
        if len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1:
            time.sleep(2)
            return
        time.sleep(0.2)
    raise AssertionError("it never asked")
