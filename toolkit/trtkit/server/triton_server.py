"""TritonServer: a real server on a build directory, from start to stop, kept alive. Knows no models and no requests."""

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from trtkit.errors import InputError, ServerError
from trtkit.progress import OnProgress, silent
from trtkit.server.backends import compiled_shims, prepare_backends
from trtkit.server.claim import Claim
from trtkit.server.endpoints import Endpoints, free_endpoints, refuse_busy
from trtkit.server.gpu_build import refuse_gpu_build
from trtkit.server.guard import Guard
from trtkit.server.incarnation import Crashed, Incarnation, crashed_for_good
from trtkit.server.installation import TritonInstallation, find_installation
from trtkit.server.launch import ServerFolders, ServerOptions, load_order, server_command, server_environment
from trtkit.server.processes import start_process, start_time_of
from trtkit.server.state import RunningServer, clear_dead, refuse_second, write_state

OnEvent = Callable[[str], None]
_WATCH_PERIOD_S = 0.25
_MAX_RESTARTS = 20


def quiet(_: str) -> None:
    """The default listener for events."""


class TritonServer:
    """A running Triton with every model of BUILD/model_repository; a context manager.

    Without `endpoints`, free ports are chosen; without `installation`, the Triton of this Python is used.

    Triton neither notices nor replaces the process of a model that died, reports it as ready, and never ends the
    streams that ran through it. So a dead process makes the whole server start again on the same ports, which ends
    those streams with an error; `on_event` is told.
    """

    def __init__(
        self,
        build: Path,
        endpoints: Endpoints | None = None,
        options: ServerOptions | None = None,
        *,
        installation: TritonInstallation | None = None,
        on_progress: OnProgress = silent,
        on_event: OnEvent = quiet,
    ) -> None:
        self.folders = ServerFolders(build)
        self.endpoints = endpoints or free_endpoints()
        self._claim = Claim(self.folders.state.parent)
        self._options = options or ServerOptions()
        self._installation = installation
        self._on_progress = on_progress
        self._on_event = on_event
        self._incarnation: Incarnation | None = None
        self._changing = threading.RLock()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._fatal: ServerError | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server process at the moment; it changes when the server had to be started again."""
        assert self._incarnation is not None, "the server is not running"
        return self._incarnation.process.pid

    @property
    def shm_prefix(self) -> str:
        """What the names of this server's shared memory begin with."""
        assert self._incarnation is not None, "the server is not running"
        return self._incarnation.shm_prefix

    def start(self) -> None:
        """Start, load every model, begin to watch. Returns when all models answer.

        Raises MissingToolError without a usable Triton or for a build for GPUs, InputError for a busy port or a build
        that is being served, ServerError with the server's own words when it, or a model, does not come up.
        """
        refuse_gpu_build(self.folders.build)
        installation = self._installation or find_installation()
        refuse_second(self.folders.state, self.folders.build)
        self._claim.take()
        try:
            clear_dead(self.folders.state)
            refuse_busy(self.endpoints)
            prepare_backends(installation, self.folders.backends)
            self.folders.log.unlink(missing_ok=True)
            self._incarnate(installation)
        except BaseException:
            self._claim.release()
            raise
        self._watcher = threading.Thread(target=self._watch, args=(installation,), name="trtkit-watch", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """End the server, its models' processes and its shared memory. Harmless when it is not running."""
        self._stopping.set()
        with self._changing:
            if self._incarnation is not None:
                self.folders.state.unlink(missing_ok=True)  # first: a server that drains is for nobody else
                try:
                    self._incarnation.end(self._options.drain_s)
                finally:
                    self._incarnation = None
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        self._claim.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block while the server is kept alive, at most `timeout_s`; true when it was stopped.

        Raises ServerError when it cannot be kept alive any more.
        """
        has_ended = self._stopping.wait(timeout_s)
        if self._fatal is not None:
            raise self._fatal
        return has_ended

    def _incarnate(self, installation: TritonInstallation) -> None:
        """Start until one attempt stands; whatever goes wrong, nothing of a failed attempt is left."""
        models = load_order(path.parent.name for path in self.folders.repository.glob("*/config.pbtxt"))
        if not models:
            raise InputError(f"{self.folders.repository} holds no model", "run trtkit build again", code="REPO-EMPTY")
        for attempt in range(1, self._options.start_attempts + 1):
            incarnation = self._spawn(installation)
            try:
                with compiled_shims(self.folders.repository):
                    incarnation.bring_up(models, self._options, self._on_progress)
                self._record(incarnation)
                return
            except Crashed as error:
                incarnation.end(0)
                if attempt == self._options.start_attempts:
                    raise crashed_for_good(error, attempt, self.folders.log) from None
            except BaseException:
                incarnation.end(0)
                raise

    def _spawn(self, installation: TritonInstallation) -> Incarnation:
        shm_prefix = f"trtkit-{secrets.token_hex(6)}-"
        command = server_command(installation, self.folders, self.endpoints, shm_prefix)
        environment = server_environment(installation, self._options)
        guard = Guard(shm_prefix)
        try:
            process = start_process(command, environment, self.folders.build, self.folders.log)
            guard.watch(process.pid)
        except BaseException:
            guard.release()
            raise
        return Incarnation(process, guard, shm_prefix, self.endpoints, self.folders)

    def _record(self, incarnation: Incarnation) -> None:
        pid = incarnation.process.pid
        started_at = start_time_of(pid)
        if started_at is None:
            raise Crashed("tritonserver ended just after it was ready")
        owner = os.getpid() if self._options.for_one_call else None
        write_state(self.folders.state, RunningServer(pid, started_at, incarnation.shm_prefix, self.endpoints, owner))
        self._incarnation = incarnation

    def _watch(self, installation: TritonInstallation) -> None:
        restarts = 0
        while not self._stopping.wait(_WATCH_PERIOD_S):
            with self._changing:
                if self._stopping.is_set() or self._incarnation is None:
                    return
                dead = self._incarnation.dead_parts()
                if not dead:
                    continue
                restarts += 1
                self._on_event(f"{' and '.join(dead)} died; the server starts again")
                try:
                    self._restart(installation, allowed=restarts <= _MAX_RESTARTS)
                except ServerError as error:
                    self._fatal = error
                    self._stopping.set()
                    return
                self._on_event("the server is ready again")

    def _restart(self, installation: TritonInstallation, *, allowed: bool) -> None:
        assert self._incarnation is not None
        self._incarnation.end(0)
        self._incarnation = None
        if not allowed:
            raise ServerError(
                f"a process of the server died {_MAX_RESTARTS + 1} times", f"see {self.folders.log}", code="SERVER"
            )
        self._incarnate(installation)
