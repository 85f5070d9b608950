"""Deployments as endpoints of the load generator: a served repository, and anything that blocks, in a thread."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from trtkit.client.async_client import AsyncTritonClient
from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest, Generation
from trtkit.evaluate.endpoints.triton import generation_of, message_request


class AsyncTritonEndpoint:
    """The BLS model of a server through one connection. An async context manager."""

    def __init__(self, address: str, clock_ns: Callable[[], int]) -> None:
        self._client = AsyncTritonClient(address, clock_ns=clock_ns)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._client.__aexit__(*_)

    async def generate(self, request: EndpointRequest) -> Generation:
        """Read one answer to its end. Raises RequestError and ServerError as the client does."""
        answer = self._client.generate(message_request(request))
        chunks = [chunk async for chunk in answer]
        return generation_of(request, answer.sent_ns, chunks)


class Threaded:
    """An endpoint that blocks, asked in a thread so that the event loop goes on."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def generate(self, request: EndpointRequest) -> Generation:
        """What the endpoint answers. Raises what it raises."""
        return await asyncio.to_thread(self._endpoint.generate, request)
