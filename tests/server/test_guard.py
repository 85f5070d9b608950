"""The process that ends a server whose owner is gone, with a sleeping process in the server's place."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from trtkit.server.guard import Guard
from trtkit.server.processes import start_time_of, wait_until

_OWNER = """
import subprocess, sys, time
from trtkit.server.guard import Guard
guard, server = Guard("trtkit-no-such-"), subprocess.Popen(["sleep", "20"])
guard.watch(server.pid)
print(server.pid, flush=True)
time.sleep(20)
"""


@pytest.fixture
def sleeping() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "20"]) as process:
        yield process
        process.kill()


def test_a_server_that_ended_leaves_a_guard_with_nothing_to_do(sleeping: "subprocess.Popen[bytes]") -> None:
    guard = Guard("trtkit-no-such-")
    guard.watch(sleeping.pid)
    sleeping.kill()
    sleeping.wait()
    guard.release()
    assert start_time_of(guard.pid) is None


def test_a_guard_without_a_server_goes_when_it_is_released() -> None:
    guard = Guard("trtkit-no-such-")
    guard.release()
    guard.release()
    assert start_time_of(guard.pid) is None


def test_a_guard_that_was_killed_hinders_nobody(sleeping: "subprocess.Popen[bytes]") -> None:
    guard = Guard("trtkit-no-such-")
    os.kill(guard.pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
    guard.watch(sleeping.pid)
    guard.release()
    assert sleeping.poll() is None


def test_an_owner_that_is_killed_takes_its_server_along() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server_pid = int(owner.stdout.readline())
        assert start_time_of(server_pid) is not None
        owner.kill()
    assert wait_until(lambda: start_time_of(server_pid) is None, 10)
