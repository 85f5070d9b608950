"""One real server on a tiny build, shared by the tests that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_build import tiny_build
from trtkit.client.triton_client import TritonClient
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

OPTIONS = ServerOptions(load_timeout_s=60, num_threads=1)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tiny_build(tmp_path_factory.mktemp("tiny"))
    config = build / "model_repository" / "tensorrt_llm" / "config.pbtxt"
    config.write_text(allow_beams(config.read_text(), 4))
    return build


def allow_beams(config: str, width: int) -> str:
    """What a user edits who wants beams; a target that verifies drafts has none by default."""
    before, key, after = config.partition('key: "max_beam_width"')
    assert key
    return before + key + after.replace('string_value: "1"', f'string_value: "{width}"', 1)


@pytest.fixture(scope="session")
def server(build: Path) -> Iterator[TritonServer]:
    with TritonServer(build, options=OPTIONS) as running:
        yield running


@pytest.fixture
def client(server: TritonServer) -> Iterator[TritonClient]:
    with TritonClient(server.endpoints.grpc) as connected:
        yield connected
