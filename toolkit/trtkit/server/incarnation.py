"""One run of the server process: spawned, filled with models, watched, ended. Knows no restarts and no state file."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from trtkit.errors import ServerError
from trtkit.progress import OnProgress, Progress
from trtkit.server.admin import AdminClient
from trtkit.server.drain import drain
from trtkit.server.endpoints import Endpoints
from trtkit.server.guard import Guard
from trtkit.server.launch import EXIT_TIMEOUT_S, ServerFolders, ServerOptions
from trtkit.server.log import failure, log_size
from trtkit.server.model_loading import config_override
from trtkit.server.processes import (
    Stub,
    clear_shared_memory,
    kill_stubs,
    start_time_of,
    stop_process,
    stubs_of,
    wait_until,
)


class Crashed(Exception):
    """The process ended while it was starting; worth another attempt."""


class Incarnation:
    """A server process and what belongs to it. `end` may be called at any time and leaves nothing behind.

    Should this process be killed before it comes to that, the guard does it.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        guard: Guard,
        shm_prefix: str,
        endpoints: Endpoints,
        folders: ServerFolders,
    ) -> None:
        self.process = process
        self.shm_prefix = shm_prefix
        self._guard = guard
        self._endpoints = endpoints
        self._admin = AdminClient(endpoints.host, endpoints.http_port)
        self._repository = folders.repository
        self._log = folders.log
        self._models: Sequence[str] = ()
        self._stubs: list[Stub] = []

    def bring_up(self, models: Sequence[str], options: ServerOptions, on_progress: OnProgress) -> None:
        """Wait until it is live and load the models one after another.

        Raises Crashed when the process ends meanwhile, ServerError with Triton's text when a model does not load.
        """
        live = wait_until(lambda: self._has_ended() or self._admin.is_live(), options.live_timeout_s)
        self._refuse_ended()
        self._models = models
        if not live:
            raise failure(f"the server was not live after {options.live_timeout_s:g} s", self._log)
        for number, model in enumerate(models):
            on_progress(Progress("load", number, len(models), f"models ({model})"))
            self._load(model, options.load_timeout_s)
        on_progress(Progress("load", len(models), len(models), "models"))
        self._stubs = stubs_of(self.shm_prefix)

    def dead_parts(self) -> list[str]:
        """What died: "the server", or the models whose process is gone. Triton itself reports them as ready."""
        if self._has_ended():
            return ["the server"]
        return [stub.model for stub in self._stubs if start_time_of(stub.pid) is None]

    def end(self, drain_s: float) -> None:
        """Stop the process, then whatever outlived it. Requests under way have drain_s to finish; 0 kills at once."""
        try:
            if drain_s > 0:
                drain(self._admin, self._models, drain_s)
                # The server looks for its end once a second, then waits for stubs; a client's idle stream holds it up.
                stop_process(self.process, EXIT_TIMEOUT_S + 2.0)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            kill_stubs(self.shm_prefix, grace_s=1.0)
            clear_shared_memory(self.shm_prefix)
            self._guard.release()

    def _load(self, model: str, timeout_s: float) -> None:
        offset = log_size(self._log)
        override = config_override(self._repository, model, self._endpoints)
        answer = self._admin.load(model, timeout_s, override)
        if answer.status == 200:
            return
        wait_until(self._has_ended, 0.5 if answer.status == 0 and not answer.timed_out else 0.0)
        self._refuse_ended()
        if answer.timed_out:
            raise failure(f"model {model} was not loaded after {timeout_s:g} s", self._log, offset=offset)
        # For a config.pbtxt that it refuses, Triton answers "failed to poll" and gives the reason in the log alone.
        reason = "" if "failed to poll" in answer.error else answer.error
        raise failure(f"Triton did not load model {model}", self._log, offset=offset, reason=reason)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def _refuse_ended(self) -> None:
        if self._has_ended():
            raise Crashed(f"tritonserver ended with code {self.process.returncode}")


def crashed_for_good(error: Crashed, attempts: int, log: Path) -> ServerError:
    """The ServerError after the last attempt."""
    return failure(f"{error} in {attempts} starts", log)
