"""ContainerServer: a server in a container, from start to stop. Knows its process and HTTP port, not its command."""

import contextlib
import functools
import subprocess
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from trtkit.artifacts import write_text
from trtkit.errors import ServerError
from trtkit.progress import OnProgress, Progress, silent
from trtkit.server.admin import AdminClient
from trtkit.server.backends import STANDIN_SHIM
from trtkit.server.claim import Claim
from trtkit.server.container import ContainerRun, container_command, stop_command
from trtkit.server.drain import drain
from trtkit.server.endpoints import refuse_busy
from trtkit.server.launch import ServerFolders, ServerOptions, load_order
from trtkit.server.log import failure
from trtkit.server.processes import start_process, stop_process, wait_until
from trtkit.server.state import clear_dead, refuse_second

_READY_TIMEOUT_S = 1800.0  # the image may have to be fetched first
_POLL_S = 0.2
_STOP_TIMEOUT_S = 30.0
_SHOWN_LINES = 15


class ContainerServer:
    """A container that serves every model of a build; a context manager. environment is the program's own."""

    def __init__(
        self,
        run: ContainerRun,
        options: ServerOptions,
        environment: Mapping[str, str],
        *,
        on_progress: OnProgress = silent,
    ) -> None:
        self.folders = ServerFolders(run.build)
        self.endpoints = run.endpoints
        self._run = run
        self._claim = Claim(self.folders.state.parent)
        self._options = options
        self._environment = environment
        self._on_progress = on_progress
        self._admin = AdminClient(run.endpoints.host, run.endpoints.http_port)
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: list[str] = []
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process of docker or podman."""
        assert self._process is not None, "the container is not running"
        return self._process.pid

    def start(self) -> None:
        """Run the container and wait until every model is ready.

        Raises InputError for a busy port or a build that is served already, ServerError with the server's words when it
        ends or a model is not loaded.
        """
        refuse_second(self.folders.state, self.folders.build)
        self._claim.take()
        clear_dead(self.folders.state)
        refuse_busy(self.endpoints)
        write_text(self._run.standin / "model.py", STANDIN_SHIM)
        self.folders.log.unlink(missing_ok=True)
        command = container_command(self._run)
        self._process = start_process(command, self._environment, self._run.build, self.folders.log)
        self._await(self._admin.is_live, "the server was not live")
        models = load_order(path.parent.name for path in self.folders.repository.glob("*/config.pbtxt"))
        for number, model in enumerate(models):
            self._on_progress(Progress("load", number, len(models), f"models ({model})"))
            if not self._run.on_gpus:
                self._load(model)
            self._await(functools.partial(self._admin.is_ready, model), f"model {model} was not ready")
            self._loaded.append(model)
        self._on_progress(Progress("load", len(models), len(models), "models"))

    def stop(self) -> None:
        """End the container; harmless when it is not running."""
        self._stopping.set()
        try:
            self._end()
        finally:
            self._claim.release()

    def _end(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        if not self._run.on_gpus:  # there the server loads its models itself, and unloads none on request
            drain(self._admin, self._loaded, self._options.drain_s)
        command = stop_command(self._run, self._options)
        stopping = start_process(command, self._environment, self._run.build, self.folders.log)
        with contextlib.suppress(subprocess.TimeoutExpired):
            stopping.wait(self._options.drain_s + _STOP_TIMEOUT_S)
        stop_process(stopping, 0.0)
        stop_process(self._process, _STOP_TIMEOUT_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block while the container runs, at most `timeout_s`; true when it was stopped. Raises ServerError else."""
        assert self._process is not None, "the container is not running"
        limit_s = float("inf") if timeout_s is None else timeout_s
        if not wait_until(lambda: self._stopping.is_set() or self._has_ended(), limit_s, _POLL_S):
            return False
        if not self._stopping.is_set():
            raise self._ended()
        return True

    def _load(self, model: str) -> None:
        answer = self._admin.load(model, self._options.load_timeout_s)
        if answer.status != 200:
            raise failure(f"Triton did not load model {model}", self.folders.log, reason=answer.error)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        reached = wait_until(lambda: self._has_ended() or condition(), _READY_TIMEOUT_S, _POLL_S)
        if self._has_ended():
            raise self._ended()
        if not reached:
            raise failure(f"{what} after {_READY_TIMEOUT_S:g} s", self.folders.log)

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _ended(self) -> ServerError:
        code = None if self._process is None else self._process.returncode
        lines = self.folders.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        return failure(f"{self._run.program} ended with code {code}", self.folders.log, reason="\n".join(lines))
