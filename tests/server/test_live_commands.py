"""`trtkit generate` against a real server: what it prints and how it fails."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from trtkit.cli.main import cli
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.server.backends import STANDIN_SHIM
from trtkit.server.endpoints import free_endpoints
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["generate", *arguments])


def test_text_goes_to_stdout_and_figures_to_stderr(client: TritonClient, build: Path) -> None:
    text = "".join(chunk.text for chunk in client.generate(GenerateRequest("hello", 8)))
    for target in (str(build),):
        result = run(target, "hello", "--max-tokens", "8")
        assert result.exit_code == 0
        assert result.stdout == text + "\n"
        assert result.stderr.startswith("8 tokens (length), first after ")


def test_a_url_is_asked_without_a_build(server: TritonServer) -> None:
    result = run(f"grpc://{server.endpoints.grpc}", "hello", "--max-tokens", "8", "--json", "--draft-len", "0")
    document = json.loads(result.stdout)
    assert document["schema"] == "trtkit.generate/1"
    assert len(document["token_ids"]) == 8
    assert document["figures"]["finish_reason"] == "length"
    assert document["figures"]["num_draft_tokens"] == 0
    assert 0 < document["ttft_ms"] <= document["total_ms"]


def test_http_is_another_way_to_the_same_answer(server: TritonServer) -> None:
    grpc, http = (f"{scheme}://127.0.0.1:{server.endpoints.ports[scheme]}" for scheme in ("grpc", "http"))
    answers = [json.loads(run(url, "hello", "--max-tokens", "8", "--json").stdout) for url in (grpc, http)]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["text"] == answers[1]["text"]


def test_streamed_and_whole_say_the_same(server: TritonServer, build: Path) -> None:
    sampled = ("hello", "--max-tokens", "8", "--temperature", "1.5", "--top-p", "0.9", "--seed", "5", "--json")
    streamed, whole = (json.loads(run(str(build), *sampled, how).stdout) for how in ("--stream", "--no-stream"))
    assert streamed["token_ids"] == whole["token_ids"]
    assert streamed["text"] == whole["text"]


def test_chat_wraps_the_prompt_in_the_template_of_the_server(server: TritonServer, build: Path) -> None:
    path = build / "tokenizer" / "chat_template.jinja"
    path.write_text("[{{ messages[0]['content'] }}]")
    try:
        chat = json.loads(run(str(build), "hello", "--chat", "--max-tokens", "4", "--json").stdout)
    finally:
        path.unlink()
    plain = json.loads(run(str(build), "[hello]", "--max-tokens", "4", "--json").stdout)
    assert chat["token_ids"] == plain["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--max-tokens", "999"], 2, "REQ-LENGTH: input max_tokens"),
        (["--draft-len", "9"], 2, "SPEC-K: input num_draft_tokens"),
        (["--timeout", "0.001"], 4, "DEADLINE"),
        (["--max-tokens", "0"], 2, "--max-tokens"),
    ],
)
def test_a_request_that_fails_says_why(
    server: TritonServer, build: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    result = run(str(build), "hello", *arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_server_that_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{free_endpoints().grpc_port}"
    result = run(f"grpc://{address}", "hello")
    assert result.exit_code == 4
    assert f"SERVER-UNREACHABLE: no Triton server answers at {address}" in result.stderr


def test_the_backend_folder_for_containers_has_the_same_line_as_the_one_that_serve_makes(repository_root: Path) -> None:
    path = repository_root / "triton" / "backends" / "tensorrtllm" / "model.py"
    assert path.read_text() == STANDIN_SHIM
