"""What `trtkit serve` does once the server is ready: say where it answers, and wait. Knows no command line."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from trtkit.errors import ServerError
from trtkit.server.endpoints import Endpoints
from trtkit.server.figures import describe_change, read_counters
from trtkit.server.launch import ServerFolders
from trtkit.serving.contract import BLS, TARGET


class ReadyServer(Protocol):
    """A server whose models answer, however it was started. pid is None for somebody else's."""

    folders: ServerFolders
    endpoints: Endpoints

    @property
    def pid(self) -> int | None:
        """Its process."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block while it runs, at most `timeout_s`; true when it was stopped. Raises ServerError when it fails."""
        ...


def describe(server: ReadyServer) -> tuple[dict[str, Any], str]:
    """The endpoints as a document and as text."""
    endpoints = server.endpoints
    # The LLM API's repository has one model, and neither an ensemble nor a draft-target loop.
    model = BLS if (server.folders.repository / BLS).is_dir() else TARGET
    http, metrics = (f"http://{endpoints.host}:{port}" for port in (endpoints.http_port, endpoints.metrics_port))
    document = {
        "schema": "trtkit.serve/1",
        "build": str(server.folders.build),
        "pid": server.pid,
        "grpc": f"grpc://{endpoints.grpc}",
        "http": http,
        "metrics": f"{metrics}/metrics",
        "model": model,
        "log": None if server.pid is None else str(server.folders.log),
    }
    text = "\n".join(
        (
            f"ready: {server.folders.build}",
            f"  gRPC     grpc://{endpoints.grpc}  (trtkit generate grpc://{endpoints.grpc} 'Hello')",
            f"  HTTP     {http}/v2/models/{model}/generate_stream",
            f"  metrics  {metrics}/metrics",
            *(() if server.pid is None else (f"  log      {server.folders.log}",)),
            "Ctrl-C leaves it; the server goes on." if server.pid is None else "Ctrl-C stops it.",
        )
    )
    return document, text


def serve_until_interrupted(
    server: ReadyServer,
    announce: Callable[[dict[str, Any], str], None],
    follow_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Announce where the ready server answers, then wait for Ctrl-C or SIGTERM.

    With follow_s, `tell` gets a line that often about the answers in between. Whoever reads the announcement may
    interrupt at once: from its first byte on, an interrupt is the normal end. Raises ServerError when the server
    cannot be kept alive, or has no metrics to follow.
    """
    with contextlib.suppress(KeyboardInterrupt):
        announce(*describe(server))
        if follow_s is None:
            server.wait()
        else:
            _follow(server, follow_s, tell)


def _follow(server: ReadyServer, period_s: float, tell: Callable[[str], None]) -> None:
    before, since = read_counters(server.endpoints), time.monotonic()
    while not server.wait(period_s):
        now = time.monotonic()
        try:
            after = read_counters(server.endpoints)
        except ServerError:
            continue  # a server that is being started again; `wait` says when there is more to it
        line = describe_change(before, after, now - since)
        if line is not None:
            tell(line)
        before, since = after, now
