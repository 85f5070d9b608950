"""HttpClient: generate over HTTP `generate_stream` (server-sent events). Knows the BLS model, no gRPC."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np

from trtkit.client.ending import to_the_end
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.tensors import chunk_of, settled, values_of
from trtkit.errors import RequestError, ServerError
from trtkit.serving.contract import BLS, CHAT_PARAMETER
from trtkit.serving.error_text import error_from_text
from trtkit.serving.tensor import Outputs

_EVENT = b"data: "
_GIVE_PORT = "give Triton's HTTP port as http://host:port, or its gRPC port as grpc://host:port"


class HttpClient:
    """The same calls as TritonClient, for where only HTTP gets through. Each answer has a connection of its own."""

    def __init__(
        self, address: str, *, timeout_s: float = 10.0, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._pieces: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open between answers."""

    def check_ready(self, model: str = BLS) -> None:
        """Raise ServerError when nobody answers, or the model is not there."""
        try:
            with _connected(self._address, self._timeout_s) as connection:
                connection.request("GET", f"/v2/models/{model}/ready")
                with connection.getresponse() as response:
                    status = response.status
        except TimeoutError:
            raise _unreachable(self._address, f"nothing came within {self._timeout_s:g} s") from None
        if status != 200:
            raise ServerError(
                f"the server at {self._address} has no model {model} that is ready",
                "start it with trtkit serve BUILD, or wait until its models are loaded",
                code="MODEL-NOT-READY",
            )

    def generate(self, request: GenerateRequest) -> "HttpAnswer":
        """Send a request; iterate over the result for its chunks. Errors are raised while iterating."""
        body = body_of(settled(request, self._sends_pieces))
        return HttpAnswer(self._address, body, request.deadline_s, self._clock_ns)

    def _sends_pieces(self) -> bool:
        if self._pieces is None:
            try:
                with _connected(self._address, self._timeout_s) as connection:
                    connection.request("GET", f"/v2/models/{BLS}/config")
                    with connection.getresponse() as response:
                        document = json.loads(response.read())
            except (TimeoutError, ValueError):
                return True  # the request itself will find out what is wrong
            self._pieces = bool(document.get("model_transaction_policy", {}).get("decoupled", False))
        return self._pieces


class HttpAnswer:
    """One answer under way: an iterator of chunks that can be cancelled from any thread.

    Raises while iterating what triton_client.Answer raises. A cancelled answer ends without a final chunk: the server
    sees the connection go, and stops between two steps.
    """

    def __init__(self, address: str, body: bytes, deadline_s: float | None, clock_ns: Callable[[], int]) -> None:
        self._address = address
        self._body = body
        self._deadline_s = deadline_s
        self._clock_ns = clock_ns
        self._is_cancelled = False
        self._socket: socket.socket | None = None
        self.sent_ns = clock_ns()

    def __iter__(self) -> Iterator[Chunk]:
        if self._is_cancelled:
            return
        try:
            with _connected(self._address, self._deadline_s) as connection:
                yield from to_the_end(self._chunks(connection), lambda: self._is_cancelled)
        except TimeoutError:
            raise ServerError(
                f"the server at {self._address} was not done after {self._deadline_s:g} s",
                "ask for fewer tokens, or allow more time",
                code="DEADLINE",
            ) from None
        except ServerError:
            if not self._is_cancelled:
                raise

    def cancel(self) -> None:
        """Tell the server to stop, by going away."""
        self._is_cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _chunks(self, connection: http.client.HTTPConnection) -> Iterator[Chunk]:
        connection.connect()
        self._socket = connection.sock
        if self._is_cancelled:  # while it was connecting, when there was nothing to shut down yet
            return
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v2/models/{BLS}/generate_stream", self._body, headers)
        with connection.getresponse() as response:
            if response.status == http.client.METHOD_NOT_ALLOWED:  # Triton's metrics port, which answers any GET
                raise _foreign(self._address, response.reason)
            while line := self._line(response):
                if line.startswith(_EVENT):
                    yield chunk_of(outputs_of(json.loads(line.removeprefix(_EVENT))), self._clock_ns())
                elif line.strip():
                    raise _error(line, self._address)

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        """The next line, within what is left of the deadline."""
        if self._deadline_s is not None and self._socket is not None:
            left_s = self._deadline_s - (self._clock_ns() - self.sent_ns) / 1e9
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
        return response.readline()


def body_of(request: GenerateRequest) -> bytes:
    """The JSON of a request: Triton takes a key that is no input for a parameter."""
    document = {name: value for name, value in values_of(request).items() if value is not None}
    return json.dumps(document | ({CHAT_PARAMETER: True} if request.is_chat else {})).encode()


def outputs_of(event: dict[str, Any]) -> Outputs:
    """The outputs of one event as arrays. Raises the error that the event is."""
    if "error" in event:
        raise error_from_text(str(event["error"]), source=BLS)
    return {name: _array(value) for name, value in event.items()}


def _array(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([item.encode() for item in values], dtype=np.object_)
    return np.array(values)


def _error(line: bytes, address: str) -> RequestError | ServerError:
    """Triton answers some errors as plain JSON instead of an event."""
    try:
        return error_from_text(str(json.loads(line)["error"]), source=BLS)
    except (ValueError, KeyError, TypeError):
        return _foreign(address, line[:200].decode("utf-8", "replace").strip())


def _foreign(address: str, said: str) -> ServerError:
    cause = f"what answers at {address} is not Triton's HTTP port; it says: {said}"
    return ServerError(cause, _GIVE_PORT, code="SERVER-UNREACHABLE")


@contextlib.contextmanager
def _connected(address: str, timeout_s: float | None) -> Iterator[http.client.HTTPConnection]:
    """A connection that is closed at the end; what breaks on it is a ServerError, but for a time-out."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        yield connection
    except TimeoutError:
        raise
    except http.client.BadStatusLine as error:
        if isinstance(error, http.client.RemoteDisconnected):
            raise _unreachable(address, str(error)) from None
        raise ServerError(
            f"what answers at {address} does not speak HTTP", _GIVE_PORT, code="SERVER-UNREACHABLE"
        ) from None
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: no name of a host
        raise _unreachable(address, str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _unreachable(address: str, why: str) -> ServerError:
    return ServerError(
        f"no Triton server answers at {address}, or it went away: {why}",
        "start one with trtkit serve BUILD, or give its http://host:port",
        code="SERVER-UNREACHABLE",
    )
