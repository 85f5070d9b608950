"""The `ensemble` model as an endpoint of the load generator, for tests: the one model whose statistics Triton keeps to
the last response. Every response is one token; knows neither ids nor figures."""

import time
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2_grpc
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation
from trtkit.serving.contract import ENSEMBLE, contracts
from trtkit.serving.kserve import request_message


class EnsembleEndpoint:
    """An async context manager; address is host:port, version the TensorRT-LLM version of the repository."""

    def __init__(self, address: str, version: str) -> None:
        self._address = address
        self._contract = contracts(version, with_draft=True)[ENSEMBLE]

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._address)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()

    async def generate(self, request: EndpointRequest) -> Generation:
        values = {"text_input": request.text, "max_tokens": request.max_new_tokens, "stream": True}
        message = request_message(self._contract, values)
        sent_ns = time.perf_counter_ns()
        arrivals = []
        async for response in self._stub.ModelStreamInfer(iter((message,))):
            assert not response.error_message, response.error_message
            arrivals.append(Arrival(time.perf_counter_ns(), 1))
        return Generation((), sent_ns, tuple(arrivals))
