"""Two commands on one build that nobody serves: the second is refused with the name of the first, and never uses a
server that ends with the first."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_build import copy_build
from trtkit.builds import open_build
from trtkit.client.triton_client import TritonClient
from trtkit.errors import InputError
from trtkit.server.connection import open_server
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
OPTIONS = ServerOptions(load_timeout_s=60, num_threads=1)
HOLDER = """
import pathlib, sys
from trtkit.builds import open_build
from trtkit.server.connection import open_server
with open_server(open_build(pathlib.Path(sys.argv[1]))) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def own_build(build: Path, tmp_path: Path) -> Path:
    return copy_build(build, tmp_path / "build")


def test_a_server_that_was_started_for_one_call_is_not_lent_to_another_process(own_build: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(own_build)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        address = holder.stdout.readline().strip()
        with (
            pytest.raises(InputError, match=rf"SERVER-RUNNING: process {holder.pid} \(.*\) serves .* for itself"),
            open_server(open_build(own_build), OPTIONS),
        ):
            pass
        with TritonClient(address) as client:
            client.check_ready()
        holder.communicate(timeout=60)
    with open_server(open_build(own_build), OPTIONS) as own, TritonClient(own) as client:
        client.check_ready()
        with open_server(open_build(own_build), OPTIONS) as same:
            assert same == own


def test_of_commands_that_start_at_once_one_answers_and_the_others_name_it(own_build: Path) -> None:
    command = [sys.executable, "-P", "-m", "trtkit", "generate", str(own_build), "hello", "--max-tokens", "60"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.pid: process.communicate(timeout=180) for process in started}
    served = [process for process in started if process.returncode == 0]
    # One that comes after the end of another may be served too; whoever is served gets its whole answer.
    assert served
    for process in started:
        text, errors = said[process.pid]
        if process in served:
            assert "60 tokens (length)" in errors
            continue
        assert process.returncode == 2 and text == ""
        assert "SERVER-RUNNING: " in errors and "Traceback" not in errors
        assert any(f"process {other.pid} (trtkit generate {own_build})" in errors for other in served) or (
            "another process" in errors
        )


def test_a_server_for_everybody_serves_several_commands_at_once(server: TritonServer, build: Path) -> None:
    assert server.pid
    command = [sys.executable, "-P", "-m", "trtkit", "generate", str(build), "hello", "--max-tokens", "8"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=180) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[0][0] == said[1][0] != ""
