"""The addresses one server listens on: chosen free, or given and then checked. Knows sockets, no Triton."""

import socket
from contextlib import ExitStack
from dataclasses import dataclass

from trtkit.errors import InputError

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class Endpoints:
    """Host and ports of KServe over HTTP, KServe over gRPC, and Prometheus metrics."""

    http_port: int
    grpc_port: int
    metrics_port: int
    host: str = LOCALHOST

    @property
    def grpc(self) -> str:
        """host:port for gRPC clients."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def ports(self) -> dict[str, int]:
        """Port by the name of its option."""
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}


def local_address(host: str) -> str:
    """The IPv4 address of this machine that a name stands for: Triton's HTTP does not listen on names.

    Raises InputError for a name that nobody knows, and for an address that is not this machine's.
    """
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        with socket.socket() as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}",
            "give an IPv4 address of this machine, or 0.0.0.0 for all of them",
            code="HOST",
        ) from None
    return address


def free_endpoints(host: str = LOCALHOST) -> Endpoints:
    """Three different ports that nobody listens on at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((host, 0))
        http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    return Endpoints(http, grpc, metrics, host)


def refuse_busy(endpoints: Endpoints) -> None:
    """Raise InputError naming the first port that something else listens on, or that may not be bound."""
    for name, port in endpoints.ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((endpoints.host, port))
            except OSError as error:
                raise InputError(
                    f"port {port} ({name}) of {endpoints.host} cannot be used: {error.strerror}",
                    f"stop what listens there, or give another one with --{name}-port (0 chooses a free one)",
                    code="PORT-BUSY",
                ) from None
