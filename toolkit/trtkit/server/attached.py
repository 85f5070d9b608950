"""AttachedServer: a server that somebody else started, with the models of a build. Watches it; ends nothing."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from trtkit.errors import ServerError
from trtkit.repository.pbtxt import config_of, read_config
from trtkit.server.admin import AdminClient
from trtkit.server.endpoints import Endpoints
from trtkit.server.launch import ServerFolders, load_order
from trtkit.server.processes import wait_until
from trtkit.server.same_build import first_difference

_POLL_S = 1.0
_HIDDEN = "it does not show its config"
_PATIENCE = 3  # a server that is busy may miss a question


class AttachedServer:
    """A running server; a context manager that leaves it running. timeout_s: for its models to become ready."""

    pid = None

    def __init__(self, build: Path, endpoints: Endpoints, timeout_s: float = 30.0) -> None:
        self.folders = ServerFolders(build)
        self.endpoints = endpoints
        self._timeout_s = timeout_s
        self._admin = AdminClient(endpoints.host, endpoints.http_port)
        self._leaving = threading.Event()

    def __enter__(self) -> Self:
        self.check_ready()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._leaving.set()

    def check_ready(self) -> None:
        """Raise ServerError when nobody answers, when models of the build are not ready there, or when one is another
        build's; it names them, and the first difference."""
        where = f"{self.endpoints.host}:{self.endpoints.http_port}"
        if not wait_until(self._admin.is_live, self._timeout_s, _POLL_S):
            raise self._gone()
        wait_until(lambda: not self._missing(), self._timeout_s, _POLL_S)
        missing = self._missing()
        if missing:
            raise ServerError(
                f"the server at {where} has not loaded {', '.join(missing)}",
                f"load them, or start it with the repository {self.folders.repository}",
                code="MODEL-NOT-READY",
            )
        self._refuse_another_build(where)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block while the server is there, at most `timeout_s`. Raises ServerError when it is gone."""
        ends_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        missed = 0
        while not self._leaving.wait(_POLL_S):
            missed = 0 if self._admin.is_live() else missed + 1
            if missed >= _PATIENCE:
                raise self._gone()
            if time.monotonic() >= ends_at:
                return False
        return True

    def _gone(self) -> ServerError:
        where = f"http://{self.endpoints.host}:{self.endpoints.http_port}"
        return ServerError(
            f"no Triton server answers at {where}", "start it, or give its address", code="SERVER-UNREACHABLE"
        )

    def _models(self) -> list[str]:
        return load_order(path.parent.name for path in self.folders.repository.glob("*/config.pbtxt"))

    def _missing(self) -> list[str]:
        return [model for model in self._models() if not self._admin.is_ready(model)]

    def _refuse_another_build(self, where: str) -> None:
        for model in self._models():
            served = self._admin.config(model)
            built = read_config(self.folders.repository / model / "config.pbtxt")
            difference = _HIDDEN if served is None else first_difference(built, config_of(served))
            if difference is not None:
                raise ServerError(
                    f"the server at {where} does not serve this build: model {model}: {difference}",
                    f"attach to the server of this build, or start it with the repository {self.folders.repository}",
                    code="SERVER-BUILD",
                )
