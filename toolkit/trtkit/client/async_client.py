"""Generate over gRPC streaming for many requests on one event loop, without a thread per request."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtkit.client.ending import broken_off
from trtkit.client.request import Chunk, GenerateRequest
from trtkit.client.tensors import chunk_of, message_of, settled
from trtkit.serving.contract import BLS
from trtkit.serving.error_text import error_from_text
from trtkit.serving.grpc_errors import answer_error
from trtkit.serving.kserve import CHANNEL_OPTIONS, outputs_of

_CONFIG_TIMEOUT_S = 10.0


class AsyncTritonClient:
    """One connection to a server with a `tensorrt_llm_bls` model. An async context manager; address is host:port."""

    def __init__(self, address: str, *, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._address = address
        self._clock_ns = clock_ns
        self._channel: Any = None
        self._sends_pieces = True

    async def __aenter__(self) -> Self:
        # A channel belongs to the event loop that runs when it is made.
        self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        with contextlib.suppress(grpc.RpcError):  # the first request will say that nobody answers
            answer = await self._stub.ModelConfig(service_pb2.ModelConfigRequest(name=BLS), timeout=_CONFIG_TIMEOUT_S)
            self._sends_pieces = bool(answer.config.model_transaction_policy.decoupled)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()

    def generate(self, request: GenerateRequest) -> "AsyncAnswer":
        """Send a request; iterate over the result for its chunks. Errors are raised while iterating."""
        message = message_of(settled(request, lambda: self._sends_pieces))
        sent_ns = self._clock_ns()
        call = self._stub.ModelStreamInfer(iter((message,)), timeout=request.deadline_s)
        return AsyncAnswer(call, self._address, sent_ns, self._clock_ns, request.deadline_s)


class AsyncAnswer:
    """One answer under way. Raises while iterating what triton_client.Answer raises."""

    def __init__(
        self, call: Any, address: str, sent_ns: int, clock_ns: Callable[[], int], deadline_s: float | None
    ) -> None:
        self._call = call
        self._address = address
        self._clock_ns = clock_ns
        self._deadline_s = deadline_s
        self.sent_ns = sent_ns

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        is_whole = False
        try:
            async for response in self._call:
                received_ns = self._clock_ns()
                if response.error_message:
                    raise error_from_text(response.error_message, source=BLS)
                chunk = chunk_of(outputs_of(response.infer_response), received_ns)
                is_whole = chunk.is_final
                yield chunk
        except grpc.RpcError as error:
            raise answer_error(error, self._address, deadline_s=self._deadline_s) from None
        finally:
            self._call.cancel()
        if not is_whole:
            raise broken_off()
