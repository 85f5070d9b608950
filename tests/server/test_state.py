"""server.json: a living server is found, a dead one's record is removed."""

import os
import subprocess
from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.server.endpoints import Endpoints
from trtkit.server.processes import start_time_of
from trtkit.server.state import RunningServer, clear_dead, find_running, refuse_second, write_state


def record(pid: int, started_at: float, owner: int | None = None) -> RunningServer:
    return RunningServer(pid, started_at, "trtkit-test-nobody-", Endpoints(1, 2, 3), owner)


def test_a_living_server_is_found_again(tmp_path: Path) -> None:
    started_at = start_time_of(os.getpid())
    assert started_at is not None
    path = tmp_path / "launch" / "server.json"
    write_state(path, record(os.getpid(), started_at))
    assert find_running(path) == record(os.getpid(), started_at)


def test_the_record_of_a_dead_server_is_no_server_and_removed_by_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    started_at = start_time_of(process.pid) or 1.0
    process.wait()
    path = tmp_path / "server.json"
    write_state(path, record(process.pid, started_at))
    assert find_running(path) is None
    assert path.exists()
    clear_dead(path)
    assert not path.exists()


def test_the_record_of_a_living_server_stays(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    write_state(path, record(os.getpid(), start_time_of(os.getpid()) or 0.0))
    clear_dead(path)
    assert find_running(path) is not None


@pytest.mark.parametrize(
    ("owner", "message"),
    [(None, "is already served by process"), (os.getpid(), rf"process {os.getpid()} \(.*\) serves .* for itself")],
)
def test_a_second_server_is_refused_with_whose_the_first_is(owner: int | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    write_state(path, record(os.getpid(), start_time_of(os.getpid()) or 0.0, owner))
    assert (found := find_running(path)) is not None and found.owner == owner
    with pytest.raises(InputError, match=f"SERVER-RUNNING: .*{message}"):
        refuse_second(path, tmp_path)


def test_another_process_with_the_same_pid_is_not_the_server(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    write_state(path, record(os.getpid(), 12345.0))
    assert find_running(path) is None


def test_a_missing_or_damaged_record_is_no_server(tmp_path: Path) -> None:
    assert find_running(tmp_path / "server.json") is None
    (tmp_path / "server.json").write_text('{"schema": "trtkit.server/1", "pid": 1}')
    assert find_running(tmp_path / "server.json") is None
