"""From the URL of a server to the client that speaks its protocol. Knows both clients by what they have in common."""

from collections.abc import Iterator
from typing import Any, Protocol, Self

from trtkit.client.http_client import HttpClient
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.serving.contract import BLS


class RunningAnswer(Protocol):
    """One answer under way."""

    @property
    def sent_ns(self) -> int:
        """When it was asked for, on the client's clock."""
        ...

    def __iter__(self) -> Iterator[Chunk]: ...

    def cancel(self) -> None:
        """Tell the server to stop."""
        ...


class Client(Protocol):
    """A connection to a server with a BLS model."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...

    def check_ready(self, model: str = BLS) -> None:
        """Raise ServerError when it is not."""
        ...

    def generate(self, request: GenerateRequest) -> RunningAnswer:
        """Send a request."""
        ...


def connect(scheme: str, address: str) -> Client:
    """A client for "grpc" or "http" at host:port; nothing is sent yet."""
    return HttpClient(address) if scheme == "http" else TritonClient(address)
