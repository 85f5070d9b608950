"""What `trtkit serve` does once the server is ready: say where it answers, and wait. Knows no command line."""

import contextlib
from collections.abc import Callable
from typing import Any

from trtkit.server.triton_server import TritonServer
from trtkit.serving.contract import BLS


def describe(server: TritonServer) -> tuple[dict[str, Any], str]:
    """The endpoints as a document and as text."""
    endpoints = server.endpoints
    http, metrics = (f"http://{endpoints.host}:{port}" for port in (endpoints.http_port, endpoints.metrics_port))
    document = {
        "schema": "trtkit.serve/1",
        "build": str(server.folders.build),
        "pid": server.pid,
        "grpc": f"grpc://{endpoints.grpc}",
        "http": http,
        "metrics": f"{metrics}/metrics",
        "model": BLS,
        "log": str(server.folders.log),
    }
    text = "\n".join(
        (
            f"ready: {server.folders.build}",
            f"  gRPC     grpc://{endpoints.grpc}  (trtkit generate grpc://{endpoints.grpc} 'Hello')",
            f"  HTTP     {http}/v2/models/{BLS}/generate_stream",
            f"  metrics  {metrics}/metrics",
            f"  log      {server.folders.log}",
            "Ctrl-C stops it.",
        )
    )
    return document, text


def serve_until_interrupted(server: TritonServer, announce: Callable[[dict[str, Any], str], None]) -> None:
    """Announce where the ready server answers, then wait for Ctrl-C or SIGTERM.

    Whoever reads the announcement may interrupt at once: from its first byte on, an interrupt is the normal end.
    Raises ServerError when the server cannot be kept alive.
    """
    with contextlib.suppress(KeyboardInterrupt):
        announce(*describe(server))
        server.wait()
