"""The server process, its stubs and its shared memory: start, list, kill, clear. Knows /proc, not HTTP."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from trtkit.errors import ServerError

SHM = Path("/dev/shm")
_KILL_TIMEOUT_S = 10.0
_STUB_NAME = "triton_python_backend_stub"
# A stub's command line names its instance, e.g. tensorrt_llm_0_0: model, instance, device.
_INSTANCE = re.compile(r"^(?P<model>.+)_\d+_\d+$")


@dataclass(frozen=True)
class Stub:
    """The process that runs one Python model."""

    pid: int
    model: str


def start_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> "subprocess.Popen[bytes]":
    """Start `command` in `folder`, in a session of its own so that Ctrl-C reaches only us; `log` gets its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as file:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ServerError(f"cannot start {command[0]}: {error.strerror}", "run trtkit doctor") from error


def stubs_of(shm_prefix: str) -> list[Stub]:
    """Every living stub whose shared memory has this prefix, orphans included."""
    return [
        Stub(process.pid, _model_of(command))
        for process, command in _stub_processes()
        if any(shm_prefix in argument for argument in command)
    ]


def start_time_of(pid: int) -> float | None:
    """When a living process started (seconds since the epoch), or None when there is no such process."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def describe_process(pid: int) -> str:
    """A living process as its user knows it: "process 12 (trtkit parity check)"; its number alone where that is all."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return f"process {pid}"
    starts = [number for number, word in enumerate(words) if Path(word).name == "trtkit"]
    named = ["trtkit", *words[starts[0] + 1 : starts[0] + 3]] if starts else [Path(word).name for word in words[:1]]
    return f"process {pid} ({' '.join(named)})"


def kill_stubs(shm_prefix: str, grace_s: float = 0.0) -> None:
    """End every stub of one server: they have grace_s to go by themselves, then SIGKILL, for an orphan ignores SIGTERM.

    Returns when they are gone.
    """
    if wait_until(lambda: not stubs_of(shm_prefix), grace_s, poll_s=0.1):
        return
    for stub in stubs_of(shm_prefix):
        with contextlib.suppress(psutil.Error):
            psutil.Process(stub.pid).kill()
    wait_until(lambda: not stubs_of(shm_prefix), _KILL_TIMEOUT_S, poll_s=0.05)


def clear_shared_memory(shm_prefix: str) -> list[str]:
    """Remove the regions that a killed server left behind, and name them."""
    left = [path for path in SHM.glob("*") if path.name.lstrip("/").startswith(shm_prefix)]
    for path in left:
        path.unlink(missing_ok=True)
    return [path.name for path in left]


def stop_process(process: "subprocess.Popen[bytes]", term_timeout_s: float) -> None:
    """SIGTERM, wait, SIGKILL, wait. Returns when the process is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(term_timeout_s)
    if process.poll() is None:
        process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Poll `condition` until it holds; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def _stub_processes() -> list[tuple[psutil.Process, list[str]]]:
    found = []
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        command = process.info["cmdline"] or []
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and command and Path(command[0]).name == _STUB_NAME:
            found.append((process, command))
    return found


def _model_of(command: Sequence[str]) -> str:
    names = [match["model"] for argument in command if (match := _INSTANCE.match(argument))]
    return names[-1] if names else ""
