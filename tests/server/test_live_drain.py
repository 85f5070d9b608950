"""A real server that is stopped while answers are under way: they are finished, within the time that they are given."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_build import tiny_build, tiny_config
from trtkit.builds import open_build
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import InputError, ServerError
from trtkit.server.connection import open_server
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rolling window, so that answers may be as long as a test needs them."""
    sinks = {"sink_tokens": 4, "window_tokens": 60, "evict_tokens": 16}
    return tiny_build(tmp_path_factory.mktemp("endless"), tiny_config(attention_sinks=sinks))


def stop_amid(server: TritonServer, answer: Iterator[Chunk]) -> tuple[list[Chunk], threading.Thread]:
    """Begin to stop the server once the answer has begun."""
    first = next(answer)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    return [first], stopping


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_answers_under_way_are_finished_and_new_ones_refused(endless: Path, num_draft_tokens: int) -> None:
    options = ServerOptions(drain_s=60, num_threads=1)
    request = GenerateRequest("hello", 600, num_draft_tokens=num_draft_tokens)
    with TritonServer(endless, options=options) as server, TritonClient(server.endpoints.grpc) as client:
        answer = iter(client.generate(request))
        chunks, stopping = stop_amid(server, answer)
        with TritonClient(server.endpoints.grpc) as late, pytest.raises(ServerError):
            while True:
                list(late.generate(GenerateRequest("hello", 1, deadline_s=30)))
        assert stopping.is_alive()
        with pytest.raises(InputError, match="SERVER-RUNNING"), open_server(open_build(endless)):
            pass
        chunks += answer
        assert sum(len(chunk.token_ids) for chunk in chunks) == 600
        assert chunks[-1].figures is not None
        assert chunks[-1].figures.finish_reason == "length"
        stopping.join(30)
        assert not stopping.is_alive()


def test_an_answer_that_takes_longer_than_it_is_given_ends_with_an_error(endless: Path) -> None:
    with TritonServer(endless, options=ServerOptions(drain_s=1, num_threads=1)) as server:
        with TritonClient(server.endpoints.grpc) as client:
            answer = iter(client.generate(GenerateRequest("hello", 1_000_000)))
            _, stopping = stop_amid(server, answer)
            began = time.monotonic()
            with pytest.raises(ServerError):
                list(answer)
            stopping.join(30)
            assert time.monotonic() - began < 20
