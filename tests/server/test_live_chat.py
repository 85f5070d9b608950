"""`trtkit chat`, chat templates and HTTP against a real server."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kserve import kserve_stream
from tiny_build import tiny_build, tiny_config
from tritonclient.utils import InferenceServerException
from trtkit.cli.main import cli
from trtkit.client.completion import Completion, collect
from trtkit.client.http_client import HttpClient
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import RequestError, ServerError
from trtkit.server.endpoints import free_endpoints
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
TEMPLATE = "{% for m in messages %}[{{ m['role'][0] }}{{ m['content'] }}]{% endfor %}{{ '>' if add_generation_prompt }}"
SINKS = {"sink_tokens": 4, "window_tokens": 60, "evict_tokens": 16}


@pytest.fixture(scope="module")
def rolling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A build with a chat template and a rolling window, so that answers and sessions may be of any length."""
    build = tiny_build(tmp_path_factory.mktemp("rolling"), tiny_config(attention_sinks=SINKS))
    (build / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    with TritonServer(build, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        yield server


@pytest.fixture(params=["grpc", "http"])
def url(rolling: TritonServer, request: pytest.FixtureRequest) -> str:
    return url_of(rolling, request.param)


@pytest.fixture
def http(rolling: TritonServer) -> HttpClient:
    return HttpClient(f"{rolling.endpoints.host}:{rolling.endpoints.http_port}")


def url_of(server: TritonServer, scheme: str) -> str:
    return f"{scheme}://{server.endpoints.host}:{server.endpoints.ports[scheme]}"


def chat(*arguments: str, lines: str) -> Result:
    return CliRunner().invoke(cli, ["chat", *arguments], input=lines)


def ask(client: HttpClient | TritonClient, text: str, max_tokens: int = 12, **options: object) -> Completion:
    return collect(client.generate(GenerateRequest(text, max_tokens, deadline_s=60, **options)), lambda _: None)  # type: ignore[arg-type]


def test_piped_lines_are_answered_one_by_one_with_the_history(url: str, http: HttpClient) -> None:
    result = chat(url, "--max-tokens", "8", "--system", "be", "--json", lines="hello\n\nyou\n")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "trtkit.chat/1"
    first, second = document["turns"]
    history = f"[sbe][uhello][a{first['text']}][uyou]>"
    assert second["text"] == ask(http, history, 8).text
    assert document["statistics"]["output_tokens"] == 16
    assert document["statistics"]["reused_blocks"] is not None


def test_text_goes_to_stdout_and_statistics_to_stderr_on_demand(url: str, http: HttpClient) -> None:
    result = chat(url, "--max-tokens", "8", lines="hello\n/stats\n/new\n/what\nhello\n/exit\nnever asked\n")
    text = ask(http, "[uhello]>", 8).text
    assert result.stdout == f"{text}\n{text}\n"
    assert "output tokens         8" in result.stderr
    assert "acceptance rate" in result.stderr and "the history is forgotten" in result.stderr


def test_a_session_goes_on_far_beyond_the_window(url: str) -> None:
    lines = "".join(f"message {number} of a long session\n" for number in range(12))
    document = json.loads(chat(url, "--max-tokens", "20", "--json", lines=lines).stdout)
    assert len(document["turns"]) == 12
    figures = [turn["figures"] for turn in document["turns"]]
    assert figures[-1]["num_prompt_tokens"] > 96  # the limit of a prompt without a window
    assert figures[-1]["num_evicted_tokens"] > 0
    assert document["statistics"]["forgotten_turns"] == 0


def test_without_a_window_the_session_forgets_its_oldest_turns(tmp_path: Path) -> None:
    build = tiny_build(tmp_path, tiny_config())
    (build / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    with TritonServer(build, options=ServerOptions(load_timeout_s=60, num_threads=1)) as server:
        lines = "".join(f"message {number}\n" for number in range(12))
        document = json.loads(chat(str(server.folders.build), "--max-tokens", "8", "--json", lines=lines).stdout)
    assert len(document["turns"]) == 12
    assert document["statistics"]["forgotten_turns"] > 0
    assert document["turns"][-1]["figures"]["num_prompt_tokens"] <= 96


def test_ctrl_c_stops_the_answer_and_not_the_session(rolling: TritonServer) -> None:
    """On a real terminal, in the middle of an answer without end."""
    command = [sys.executable, "-P", "-m", "trtkit", "chat", url_of(rolling, "grpc"), "--max-tokens", "1000000"]
    terminal, inside = pty.openpty()
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
    os.close(inside)
    try:
        shown = read_until(terminal, "> ")
        os.write(terminal, b"hello\n")
        shown += read_until(terminal, "hello\r\n") + os.read(terminal, 64).decode()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        read_until(terminal, "(stopped)\r\n> ")  # what is typed before the prompt may be lost
        os.write(terminal, b"/stats\n")
        read_until(terminal, "stopped               1")
        os.write(terminal, b"/exit\n")
        read_until(terminal, None)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def read_until(terminal: int, wanted: str | None) -> str:
    """What the terminal shows until `wanted`, or until its program is gone."""
    shown = b""
    while wanted is None or wanted.encode() not in shown:
        assert select.select([terminal], [], [], 60)[0], f"nothing more after {shown!r}"
        try:
            shown += os.read(terminal, 4096)
        except OSError:
            assert wanted is None, shown
            break
    return shown.decode("utf-8", "replace")


def test_http_and_grpc_give_the_same_tokens_and_figures(http: HttpClient, rolling: TritonServer) -> None:
    http.check_ready()
    with TritonClient(rolling.endpoints.grpc) as grpc:
        for text, options in (
            ("hello", {}),
            ("日本 👩‍👩‍👧", {"num_draft_tokens": 0}),
            ("a", {"temperature": 1.5, "seed": 3}),
        ):
            over_http, over_grpc = (ask(client, text, wants_cache_figures=True, **options) for client in (http, grpc))
            assert over_http.token_ids == over_grpc.token_ids
            assert over_http.text == over_grpc.text
            assert over_http.figures.num_draft_tokens == over_grpc.figures.num_draft_tokens
    whole = ask(http, "hello", stream=False)
    assert whole.token_ids == ask(http, "hello").token_ids


def test_http_errors_are_typed_and_the_server_goes_on(http: HttpClient) -> None:
    expected = ask(http, "hello").token_ids
    for request, kind, message in (
        (GenerateRequest("", 5), RequestError, "REQ-EMPTY: input text_input"),
        (GenerateRequest("a", 5, num_draft_tokens=9), RequestError, "SPEC-K: input num_draft_tokens"),
        (GenerateRequest("[{}]", 5, is_chat=True), RequestError, "REQ-CHAT"),
        (GenerateRequest("hello", 100_000, deadline_s=0.3), ServerError, "DEADLINE"),
    ):
        with pytest.raises(kind, match=message):
            list(http.generate(request))
        assert ask(http, "hello").token_ids == expected
    nobody = HttpClient(f"127.0.0.1:{free_endpoints().http_port}")
    with pytest.raises(ServerError, match="SERVER-UNREACHABLE"):
        nobody.check_ready()
    with pytest.raises(ServerError, match="MODEL-NOT-READY"):
        http.check_ready("no_such_model")


@pytest.mark.parametrize("draft_len", [0, 4])
def test_the_timeout_of_a_request_ends_its_answer_on_the_server(rolling: TritonServer, draft_len: int) -> None:
    endless = {"text_input": ("BYTES", [[b"hello"]]), "max_tokens": ("INT32", [[1_000_000]])}
    with kserve_stream(rolling.endpoints.grpc) as stream:
        for streaming in (True, False):
            stream.send(
                "tensorrt_llm_bls",
                timeout_us=500_000,
                stream=("BOOL", [[streaming]]),
                num_draft_tokens=("INT32", [[draft_len]]),
                **endless,
            )
            started = time.monotonic()
            with pytest.raises(InferenceServerException, match=r"REQ-DEADLINE.*0\.5 s"):
                list(stream.responses())
            assert time.monotonic() - started < 10


def test_the_timeout_is_a_key_of_the_json_over_http(rolling: TritonServer) -> None:
    url = f"http://{rolling.endpoints.host}:{rolling.endpoints.http_port}/v2/models/tensorrt_llm_bls/generate_stream"
    body = {"text_input": "hello", "max_tokens": 1_000_000, "stream": True, "timeout": 500_000}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=60) as response:
        events = response.read().decode().split("data: ")
    assert "REQ-DEADLINE" in events[-1]


def test_an_answer_over_http_can_be_cancelled(http: HttpClient) -> None:
    answer = http.generate(GenerateRequest("hello", 1_000_000))
    chunks = iter(answer)
    next(chunks)
    answer.cancel()
    assert all(not chunk.is_final for chunk in chunks)
    assert ask(http, "hello").token_ids


def test_the_server_applies_the_template_for_clients_that_never_saw_trtkit(
    http: HttpClient, rolling: TritonServer
) -> None:
    expected = ask(http, "[sbe][uhello]>").text
    messages = json.dumps([{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]).encode()
    values = {"max_tokens": ("INT32", [[12]]), "exclude_input_in_output": ("BOOL", [[True]])}
    with kserve_stream(rolling.endpoints.grpc) as stream:
        for model in ("tensorrt_llm_bls", "ensemble"):
            stream.send(model, parameters={"apply_chat_template": True}, text_input=("BYTES", [[messages]]), **values)
            [response] = stream.responses()
            assert response["text_output"][0][0].decode() == expected
