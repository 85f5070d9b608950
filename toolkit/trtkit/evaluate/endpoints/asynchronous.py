"""Deployments as endpoints of the load generator: a served repository, and anything that blocks, in a thread."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from trtkit.client.async_client import AsyncTritonClient
from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest, Generation
from trtkit.evaluate.endpoints.patience import Patience
from trtkit.evaluate.endpoints.triton import generation_of, message_request


class AsyncTritonEndpoint:
    """The BLS model of a server through one connection. An async context manager; its silence is limited."""

    def __init__(self, address: str, clock_ns: Callable[[], int]) -> None:
        self._patience = Patience(clock_ns)
        self._client = AsyncTritonClient(address, clock_ns=self._patience.now_ns)
        self._opened = AsyncExitStack()
        self._under_way: set[asyncio.Task[object]] = set()

    async def __aenter__(self) -> Self:
        await self._opened.enter_async_context(self._client)
        loop = asyncio.get_running_loop()
        self._opened.enter_context(self._patience.limited(lambda: loop.call_soon_threadsafe(self._give_up)))
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._opened.aclose()

    async def generate(self, request: EndpointRequest) -> Generation:
        """Read one answer to its end. Raises RequestError and ServerError as the client does, and ServerError when
        nothing comes any more."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._under_way.add(task)
        try:
            with self._patience.awaiting():
                answer = self._client.generate(message_request(request))
                chunks = [chunk async for chunk in answer]
                return generation_of(request, answer.sent_ns, chunks)
        finally:
            self._under_way.discard(task)

    def _give_up(self) -> None:
        for task in self._under_way:
            task.cancel()


class Threaded:
    """An endpoint that blocks, asked in a thread so that the event loop goes on."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def generate(self, request: EndpointRequest) -> Generation:
        """What the endpoint answers. Raises what it raises."""
        return await asyncio.to_thread(self._endpoint.generate, request)
