"""Load on a deployment, on one event loop: closed loops, and arrivals at given times. Knows no protocol, no figures."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.evaluate.endpoints.endpoint import AsyncEndpoint, EndpointRequest, Generation

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Timer:
    """The clock of a load, and how to wait on it. now_ns need only be monotonic."""

    now_ns: Callable[[], int]
    sleep_s: Sleep = asyncio.sleep

    async def sleep_until(self, at_ns: int) -> None:
        """Return at `at_ns`, or at once when that is past."""
        while (left_ns := at_ns - self.now_ns()) > 0:
            await self.sleep_s(left_ns / 1e9)


def poisson_times(rate: float, num_requests: int, seed: int) -> list[float]:
    """Arrival times in seconds from 0 of a Poisson process with `rate` arrivals per second."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=num_requests)
    return [0.0, *itertools.accumulate(gaps[1:].tolist())] if num_requests else []


async def closed_loop(
    endpoint: AsyncEndpoint, requests: Sequence[EndpointRequest], concurrency: int
) -> list[Generation]:
    """Keep `concurrency` requests under way until each has its answer; the answers in the order of the requests.

    Raises what the endpoint raises for the first request that fails; the others are given up.
    """
    answers: dict[int, Generation] = {}
    waiting = iter(enumerate(requests))

    async def ask() -> None:
        for index, request in waiting:
            answers[index] = await endpoint.generate(request)

    await _all(ask() for _ in range(min(concurrency, len(requests))))
    return [answers[index] for index in range(len(requests))]


async def open_loop(
    endpoint: AsyncEndpoint, requests: Sequence[EndpointRequest], times_s: Sequence[float], timer: Timer
) -> list[Generation]:
    """Send each request at its time, in seconds from now, however many are still under way.

    Latency counts from the planned time: a client that is late itself, under its own load, would else hide it.
    """
    answers: dict[int, Generation] = {}
    started_ns = timer.now_ns()

    async def ask(index: int) -> None:
        planned_ns = started_ns + round(times_s[index] * 1e9)
        await timer.sleep_until(planned_ns)
        answers[index] = replace(await endpoint.generate(requests[index]), sent_ns=planned_ns)

    await _all(ask(index) for index in range(len(requests)))
    return [answers[index] for index in range(len(requests))]


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run side by side to the end of all, or to the first failure, which is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
