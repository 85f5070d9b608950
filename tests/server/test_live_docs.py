"""The clients of docs/serving.md against a real server: tritonclient and curl know nothing of trtkit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trtkit.client.completion import collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
PROMPT = "The capital of France is"
# What makes an import of trtkit fail.
BLIND = "import sys; sys.modules['trtkit'] = None\n"


@pytest.fixture
def page(repository_root: Path, server: TritonServer) -> str:
    """The page with the addresses of the server."""
    text = (repository_root / "docs" / "serving.md").read_text()
    text = text.replace("127.0.0.1:8001", server.endpoints.grpc)
    return text.replace("127.0.0.1:8000", f"{server.endpoints.host}:{server.endpoints.http_port}")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.M | re.S)


def expected(client: TritonClient, num_tokens: int) -> str:
    return collect(client.generate(GenerateRequest(PROMPT, num_tokens)), lambda _: None).text


def output_of(source: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()  # not as text, which would change the answer's line ends


def test_a_plain_tritonclient_streams_the_answer(page: str, client: TritonClient) -> None:
    [source] = [block for block in blocks(page, "python") if "tritonclient" in block]
    assert output_of(BLIND + source) == expected(client, 16)


def test_the_python_client_of_the_page_streams_the_answer(page: str, client: TritonClient) -> None:
    [source] = [block for block in blocks(page, "python") if "TritonClient" in block]
    assert output_of(source).startswith(expected(client, 32))


def test_curl_streams_the_answer_as_events(page: str, client: TritonClient) -> None:
    [first, _] = re.findall(r"^curl .*?'$", page, flags=re.M | re.S)
    done = subprocess.run(["sh", "-c", first], capture_output=True, text=True, timeout=120)
    events = [json.loads(line.removeprefix("data: ")) for line in done.stdout.splitlines() if line]
    assert "".join(event["text_output"] for event in events) == expected(client, 16)
    assert len(events) > 2
