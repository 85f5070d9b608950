"""What `trtkit serve` announces, for servers of every kind."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from trtkit.server.endpoints import Endpoints
from trtkit.server.launch import ServerFolders
from trtkit.server.run import describe, serve_until_interrupted


@dataclass
class ReadyServer:
    """A server that is there for `periods` waits."""

    folders: ServerFolders
    endpoints: Endpoints = field(default_factory=lambda: Endpoints(1, 2, 3))
    pid: int | None = 7
    periods: int = 0

    def wait(self, timeout_s: float | None = None) -> bool:
        self.periods -= 1
        return self.periods < 0


@pytest.fixture
def folders(tmp_path: Path) -> ServerFolders:
    return ServerFolders(tmp_path)


def test_clients_are_sent_to_the_draft_target_loop_where_there_is_one(folders: ServerFolders) -> None:
    assert describe(ReadyServer(folders))[0]["model"] == "tensorrt_llm"
    (folders.repository / "tensorrt_llm_bls").mkdir(parents=True)
    document, text = describe(ReadyServer(folders))
    assert document["model"] == "tensorrt_llm_bls"
    assert "http://127.0.0.1:1/v2/models/tensorrt_llm_bls/generate_stream" in text
    assert text.endswith("Ctrl-C stops it.")


def test_somebody_elses_server_has_no_log_and_goes_on(folders: ServerFolders) -> None:
    document, text = describe(ReadyServer(folders, pid=None))
    assert (document["pid"], document["log"]) == (None, None)
    assert text.endswith("the server goes on.") and "log" not in text


def test_without_following_no_metrics_are_asked(folders: ServerFolders) -> None:
    told: list[str] = []
    serve_until_interrupted(ReadyServer(folders), lambda *_: None, None, told.append)
    assert told == []
