"""server.json: a living server is found, a dead one's record is removed."""

import os
import subprocess
from pathlib import Path

from trtkit.server.endpoints import Endpoints
from trtkit.server.processes import start_time_of
from trtkit.server.state import RunningServer, find_running, write_state


def record(pid: int, started_at: float) -> RunningServer:
    return RunningServer(pid, started_at, "trtkit-test-nobody-", Endpoints(1, 2, 3))


def test_a_living_server_is_found_again(tmp_path: Path) -> None:
    started_at = start_time_of(os.getpid())
    assert started_at is not None
    path = tmp_path / "launch" / "server.json"
    write_state(path, record(os.getpid(), started_at))
    assert find_running(path) == record(os.getpid(), started_at)


def test_the_record_of_a_dead_server_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    started_at = start_time_of(process.pid) or 1.0
    process.wait()
    path = tmp_path / "server.json"
    write_state(path, record(process.pid, started_at))
    assert find_running(path) is None
    assert not path.exists()


def test_another_process_with_the_same_pid_is_not_the_server(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    write_state(path, record(os.getpid(), 12345.0))
    assert find_running(path) is None


def test_a_missing_or_damaged_record_is_no_server(tmp_path: Path) -> None:
    assert find_running(tmp_path / "server.json") is None
    (tmp_path / "server.json").write_text('{"schema": "trtkit.server/1", "pid": 1}')
    assert find_running(tmp_path / "server.json") is None
