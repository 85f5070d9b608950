"""What `trtkit serve` does once the server is ready: say where it answers, and wait. Knows no command line."""

import contextlib
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


def serve_until_interrupted(server: TritonServer) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises ServerError when the server cannot be kept alive."""
    with contextlib.suppress(KeyboardInterrupt):
        server.wait()
