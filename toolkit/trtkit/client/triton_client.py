"""TritonClient: generate over gRPC streaming, with typed chunks and errors. Knows the BLS model, not the transport."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from trtkit.client.ending import to_the_end
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.tensors import chunk_of, message_of, settled
from trtkit.errors import ServerError
from trtkit.serving.contract import BLS
from trtkit.serving.kserve import Connection, ResponseStream


class TritonClient:
    """One connection to a server with a `tensorrt_llm_bls` model; any number of threads may ask at the same time.

    address is host:port. timeout_s bounds what is not an answer: asking whether models are ready.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 10.0, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._connection = Connection(address)
        self._pieces: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection up; answers under way end with an error."""
        self._connection.close()

    def check_ready(self, model: str = BLS) -> None:
        """Raise ServerError when nobody answers, or the model is not there."""
        if not self._connection.is_ready(model, self._timeout_s):
            raise ServerError(
                f"the server at {self._connection.address} has no model {model} that is ready",
                "start it with trtkit serve BUILD, or wait until its models are loaded",
                code="MODEL-NOT-READY",
            )

    def generate(self, request: GenerateRequest) -> "Answer":
        """Send a request; iterate over the result for its chunks. Errors are raised while iterating."""
        message = message_of(settled(request, self._sends_pieces))
        sent_ns = self._clock_ns()
        return Answer(self._connection.stream(message, deadline_s=request.deadline_s), sent_ns, self._clock_ns)

    def _sends_pieces(self) -> bool:
        if self._pieces is None:
            self._pieces = self._connection.sends_pieces(BLS, self._timeout_s)
        return self._pieces


class Answer:
    """One answer under way: an iterator of chunks that can be cancelled from any thread.

    Raises while iterating: RequestError when the server refuses the request, ServerError when it fails, is not there,
    or a deadline passes. A cancelled answer ends without a final chunk.
    """

    def __init__(self, responses: ResponseStream, sent_ns: int, clock_ns: Callable[[], int]) -> None:
        self._responses = responses
        self._clock_ns = clock_ns
        self.sent_ns = sent_ns

    def __iter__(self) -> Iterator[Chunk]:
        chunks = (chunk_of(outputs, self._clock_ns()) for outputs in self._responses)
        yield from to_the_end(chunks, lambda: self._responses.is_cancelled)

    def cancel(self) -> None:
        """Tell the server to stop."""
        self._responses.cancel()
