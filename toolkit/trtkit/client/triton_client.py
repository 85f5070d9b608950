"""TritonClient: generate over gRPC streaming, with typed chunks and errors. Knows the transport, not the server."""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.tensors import chunk_of, message_of
from trtkit.errors import RequestError, ServerError
from trtkit.serving.contract import BLS
from trtkit.serving.error_text import error_from_text

_NO_LIMIT = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class TritonClient:
    """One connection to a server with a `tensorrt_llm_bls` model; any number of threads may ask at the same time.

    address is host:port. timeout_s bounds what is not an answer: asking whether models are ready.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 10.0, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._channel = grpc.insecure_channel(address, options=_NO_LIMIT)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection up; answers under way end with an error."""
        self._channel.close()

    def check_ready(self, model: str = BLS) -> None:
        """Raise ServerError when nobody answers, or the model is not there."""
        try:
            response = self._stub.ModelReady(service_pb2.ModelReadyRequest(name=model), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise _typed(error, self._address, deadline_s=self._timeout_s) from None
        if not response.ready:
            raise ServerError(
                f"the server at {self._address} has no model {model} that is ready",
                "start it with trtkit serve BUILD, or wait until its models are loaded",
                code="MODEL-NOT-READY",
            )

    def generate(self, request: GenerateRequest) -> "Answer":
        """Send a request; iterate over the result for its chunks. Errors are raised while iterating."""
        message = message_of(request)
        sent_ns = self._clock_ns()
        call = self._stub.ModelStreamInfer(iter((message,)), timeout=request.deadline_s)
        return Answer(call, self._address, sent_ns, request.deadline_s, self._clock_ns)


class Answer:
    """One answer under way: an iterator of chunks that can be cancelled from any thread.

    Raises while iterating: RequestError when the server refuses the request, ServerError when it fails, is not there,
    or a deadline passes. A cancelled answer ends without a final chunk.
    """

    def __init__(
        self, call: Any, address: str, sent_ns: int, deadline_s: float | None, clock_ns: Callable[[], int]
    ) -> None:
        self._call = call
        self._address = address
        self._deadline_s = deadline_s
        self._clock_ns = clock_ns
        self._is_cancelled = False
        self.sent_ns = sent_ns

    def __iter__(self) -> Iterator[Chunk]:
        try:
            for response in self._call:
                if response.error_message:
                    raise error_from_text(response.error_message, source=BLS)
                yield chunk_of(response.infer_response, self._clock_ns())
        except grpc.RpcError as error:
            if not self._is_cancelled:
                raise _typed(error, self._address, deadline_s=self._deadline_s) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """Tell the server to stop."""
        self._is_cancelled = True
        self._call.cancel()


def _typed(error: grpc.RpcError, address: str, *, deadline_s: float | None) -> RequestError | ServerError:
    """A failure of the transport, or of Triton before any model was asked, as one of our errors."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServerError(
            f"no Triton server answers at {address}, or it went away: {details}",
            "start one with trtkit serve BUILD, or give its grpc://host:port",
            code="SERVER-UNREACHABLE",
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"the server at {address} was not done after {deadline_s:g} s",
            "ask for fewer tokens, or allow more time",
            code="DEADLINE",
        )
    return error_from_text(details, source=f"{address} ({code.name})")
