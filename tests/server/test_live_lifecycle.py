"""A real server's start, faults and stop. Each test starts its own, so that nothing here disturbs another."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_build import copy_build, tiny_build, tiny_config
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import InputError, ServerError
from trtkit.server.endpoints import free_endpoints
from trtkit.server.installation import TritonInstallation, find_installation
from trtkit.server.launch import ServerFolders, ServerOptions
from trtkit.server.processes import SHM, start_time_of, stubs_of
from trtkit.server.run import serve_until_interrupted
from trtkit.server.state import find_running
from trtkit.server.triton_server import TritonServer

pytestmark = pytest.mark.tritonserver
OPTIONS = ServerOptions(load_timeout_s=60, num_threads=1)


@pytest.fixture
def own_build(build: Path, tmp_path: Path) -> Path:
    return copy_build(build, tmp_path / "build")


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def regions(prefix: str) -> list[str]:
    return [path.name for path in SHM.iterdir() if path.name.startswith(prefix)]


def tokens(client: TritonClient) -> list[int]:
    request = GenerateRequest("hello", 8, deadline_s=60)
    return [token for chunk in client.generate(request) for token in chunk.token_ids]


@pytest.mark.parametrize("drain_s", [0.0, 3.0])
def test_a_stopped_server_leaves_no_process_no_shared_memory_and_the_build_as_it_was(
    own_build: Path, drain_s: float
) -> None:
    before = sorted(path for path in (own_build / "model_repository").rglob("*"))
    with TritonServer(own_build, options=ServerOptions(drain_s=drain_s, num_threads=1)) as server:
        pid, prefix = server.pid, server.shm_prefix
        running = find_running(ServerFolders(own_build).state)
        assert running is not None
        assert running.pid == pid
        assert len(stubs_of(prefix)) == 5
        assert regions(prefix)
        with TritonClient(server.endpoints.grpc) as client:
            assert len(tokens(client)) == 8
    assert start_time_of(pid) is None
    assert stubs_of(prefix) == []
    assert regions(prefix) == []
    assert find_running(ServerFolders(own_build).state) is None
    assert sorted(path for path in (own_build / "model_repository").rglob("*")) == before


@pytest.mark.parametrize("victim", ["tensorrt_llm", "tensorrt_llm_bls"])
def test_a_models_process_that_dies_is_noticed_its_streams_end_and_the_server_comes_back(
    tmp_path: Path, victim: str
) -> None:
    events: list[tuple[float, str]] = []
    # A rolling window, so that the answer has no end before the process dies.
    sinks = {"sink_tokens": 4, "window_tokens": 60, "evict_tokens": 16}
    endless = tiny_build(tmp_path, tiny_config(attention_sinks=sinks))
    server = TritonServer(endless, options=OPTIONS, on_event=lambda text: events.append((time.monotonic(), text)))
    with server, TritonClient(server.endpoints.grpc) as client:
        before = tokens(client)
        answer = iter(client.generate(GenerateRequest("hello", 1_000_000, num_draft_tokens=0)))
        next(answer)
        [pid] = [stub.pid for stub in stubs_of(server.shm_prefix) if stub.model == victim]
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServerError):
            list(answer)
        assert wait_for(lambda: len(events) == 2, 60)
        assert events[0][1] == f"{victim} died; the server starts again"
        assert events[0][0] - killed_at < 2
        assert events[1][1] == "the server is ready again"
        client.check_ready()
        assert tokens(client) == before


def test_a_server_that_is_killed_starts_again(own_build: Path) -> None:
    events: list[str] = []
    with TritonServer(own_build, options=OPTIONS, on_event=events.append) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert wait_for(lambda: len(events) == 2, 60)
        with TritonClient(server.endpoints.grpc) as client:
            assert len(tokens(client)) == 8


def test_a_model_that_does_not_load_shows_the_models_own_reason(own_build: Path) -> None:
    (own_build / "checkpoints" / "target" / "config.json").unlink()
    server = TritonServer(own_build, options=OPTIONS)
    with pytest.raises(ServerError, match=r"(?s)did not load model tensorrt_llm:.*config\.json") as error:
        server.start()
    assert "tritonserver.log" in error.value.fix
    assert find_running(ServerFolders(own_build).state) is None


def test_a_config_that_triton_refuses_shows_the_line(own_build: Path) -> None:
    config = own_build / "model_repository" / "preprocessing" / "config.pbtxt"
    config.write_text(config.read_text() + "\nno_such_field: 1\n")
    with pytest.raises(ServerError, match=r"(?s)did not load model preprocessing:.*no_such_field"):
        TritonServer(own_build, options=OPTIONS).start()


def test_a_parameter_that_needs_a_gpu_is_refused_at_load(own_build: Path) -> None:
    config = own_build / "model_repository" / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text().replace('"top_k_top_p"', '"medusa"'))
    with pytest.raises(ServerError, match=r"(?s)PARAM-UNSERVED: .*decoding_mode is 'medusa'"):
        TritonServer(own_build, options=OPTIONS).start()


def test_a_busy_port_is_refused_before_anything_starts(own_build: Path) -> None:
    endpoints = free_endpoints()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", endpoints.http_port))
        listener.listen()
        with pytest.raises(InputError, match=f"PORT-BUSY: port {endpoints.http_port}"):
            TritonServer(own_build, endpoints, OPTIONS).start()
    assert not (own_build / "logs").exists()


def test_a_build_is_served_once(build: Path, server: TritonServer) -> None:
    with pytest.raises(InputError, match=f"SERVER-RUNNING: .* served by process {server.pid}"):
        TritonServer(build, options=OPTIONS).start()


def crashing(folder: Path, times: int) -> TritonInstallation:
    """The real installation behind a program that dies like the known start-up crash, `times` times."""
    installation = find_installation()
    program, counter = folder / "tritonserver", folder / "starts"
    program.write_text(
        f"#!/bin/sh\necho x >> {counter}\n"
        f"[ $(wc -l < {counter}) -le {times} ] && echo 'terminate called: lock_exception' && kill -ABRT $$\n"
        f'exec {installation.binary} "$@"\n'
    )
    program.chmod(0o755)
    return replace(installation, binary=program)


def test_the_start_up_crash_is_retried(own_build: Path, tmp_path: Path) -> None:
    with TritonServer(own_build, options=OPTIONS, installation=crashing(tmp_path, 2)) as server:
        with TritonClient(server.endpoints.grpc) as client:
            assert len(tokens(client)) == 8
    assert (tmp_path / "starts").read_text() == "x\n" * 3


def test_a_server_that_always_crashes_is_given_up_with_its_last_words(own_build: Path, tmp_path: Path) -> None:
    options = ServerOptions(start_attempts=2)
    with pytest.raises(ServerError, match=r"(?s)ended with code -6 in 2 starts:.*lock_exception"):
        TritonServer(own_build, options=options, installation=crashing(tmp_path, 99)).start()


def test_a_load_that_hangs_is_ended_by_the_time_out(own_build: Path) -> None:
    # Triton waits for ever for a Python model that has no model.py.
    (own_build / "model_repository" / "postprocessing" / "1" / "model.py").unlink()
    with pytest.raises(ServerError, match="postprocessing was not loaded after 3 s"):
        TritonServer(own_build, options=ServerOptions(load_timeout_s=3)).start()
    assert ours(own_build) == []


def test_an_empty_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="REPO-EMPTY"):
        TritonServer(tmp_path, options=OPTIONS).start()


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_cleanly_when_interrupted(own_build: Path, signal_: signal.Signals) -> None:
    command = [sys.executable, "-P", "-m", "trtkit", "serve", str(own_build), "--threads", "1", "--drain", "0.5"]
    ports = [option for name in ("http", "grpc", "metrics") for option in (f"--{name}-port", "0")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        running = find_running(ServerFolders(own_build).state)
        assert running is not None
        process.send_signal(signal_)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stderr.splitlines()[-1] == "stopped"
    assert start_time_of(running.pid) is None
    assert stubs_of(running.shm_prefix) == []
    assert regions(running.shm_prefix) == []


def test_a_command_that_is_killed_takes_its_server_with_it(own_build: Path) -> None:
    command = [sys.executable, "-P", "-m", "trtkit", "serve", str(own_build), "--threads", "1"]
    ports = [option for name in ("http", "grpc", "metrics") for option in (f"--{name}-port", "0")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: ")
        running = find_running(ServerFolders(own_build).state)
        assert running is not None
        process.kill()
        process.communicate(timeout=30)
    assert wait_for(lambda: start_time_of(running.pid) is None, 5)
    assert wait_for(lambda: stubs_of(running.shm_prefix) == [], 10)
    assert wait_for(lambda: regions(running.shm_prefix) == [], 5)
    assert find_running(ServerFolders(own_build).state) is None


def test_an_interrupt_is_the_normal_end_as_soon_as_the_announcement_can_be_read(server: TritonServer) -> None:
    announced: list[str] = []

    def interrupted_reader(_: dict[str, Any], text: str) -> None:
        announced.append(text)
        raise KeyboardInterrupt

    serve_until_interrupted(server, interrupted_reader)
    assert announced[0].startswith("ready: ")


def test_an_interrupted_start_leaves_nothing(own_build: Path) -> None:
    command = [sys.executable, "-P", "-m", "trtkit", "serve", str(own_build)]
    ports = [option for name in ("http", "grpc", "metrics") for option in (f"--{name}-port", "0")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert wait_for(lambda: ours(own_build) != [], 30)
        prefix = ours(own_build)[0]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert wait_for(lambda: stubs_of(prefix) == [], 5)
    assert regions(prefix) == []


def ours(build: Path) -> list[str]:
    """Shared-memory prefixes of the stubs that serve this build."""
    found = []
    for stub in stubs_of("trtkit-"):
        command = Path(f"/proc/{stub.pid}/cmdline").read_bytes().decode().split("\0")
        if any(str(build) in argument for argument in command):
            found += ["-".join(argument.split("-")[:2]) + "-" for argument in command if argument.startswith("trtkit-")]
    return found
