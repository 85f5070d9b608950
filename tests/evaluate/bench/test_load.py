"""The load generator: closed loops keep their number under way, open loops their times, failures end both."""

import asyncio
from typing import Any

import numpy as np
import pytest
from trtkit.errors import ServerError
from trtkit.evaluate.bench.load import Timer, closed_loop, open_loop, poisson_times
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation

MS = 1_000_000


class World:
    """A clock, and sleepers that it wakes in order: time passes only while everybody waits."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.sleepers: list[tuple[int, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self.sleepers.append((self.now_ns + round(seconds * 1e9), woken))
        await woken.wait()

    async def run(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(20):  # let everything that can go on, go on
                await asyncio.sleep(0)
            if self.sleepers and not task.done():
                self.sleepers.sort(key=lambda sleeper: sleeper[0])
                at_ns, woken = self.sleepers.pop(0)
                self.now_ns = max(self.now_ns, at_ns)
                woken.set()
        return await task


class SlowEndpoint:
    """Every answer takes 100 ms; remembers when requests came and how many were under way at most."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.came_ms: dict[str, float] = {}
        self.under_way = self.most = 0

    async def generate(self, request: EndpointRequest) -> Generation:
        self.came_ms[request.text] = self.world.now_ns / MS
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if request.text == "bad":
            raise ServerError("no", "mend it")
        await self.world.sleep(0.1)
        self.under_way -= 1
        return Generation((1,), self.world.now_ns, (Arrival(self.world.now_ns, 1),))


def requests(*texts: str) -> list[EndpointRequest]:
    return [EndpointRequest(text, 1) for text in texts]


def run(world: World, work: Any) -> Any:
    return asyncio.run(world.run(work))


def test_a_closed_loop_keeps_its_number_under_way_and_the_order_of_answers() -> None:
    world = World()
    endpoint = SlowEndpoint(world)
    answers = run(world, closed_loop(endpoint, requests("a", "b", "c", "d", "e"), 2))
    assert endpoint.most == 2
    assert endpoint.came_ms == {"a": 0, "b": 0, "c": 100, "d": 100, "e": 200}
    assert [answer.sent_ns / MS for answer in answers] == [100, 100, 200, 200, 300]


def test_an_open_loop_sends_at_the_given_times_whatever_is_under_way() -> None:
    world = World()
    endpoint = SlowEndpoint(world)
    timer = Timer(lambda: world.now_ns, world.sleep)
    answers = run(world, open_loop(endpoint, requests("a", "b", "c"), [0.0, 0.01, 0.35], timer))
    assert endpoint.came_ms == {"a": 0, "b": 10, "c": 350}
    assert endpoint.most == 2
    # Latency counts from the planned time.
    assert [answer.sent_ns / MS for answer in answers] == [0, 10, 350]


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_a_failure_ends_the_load_as_it_is(loop: str) -> None:
    world = World()
    endpoint, asked = SlowEndpoint(world), requests("a", "bad", "c")
    timer = Timer(lambda: world.now_ns, world.sleep)
    work = closed_loop(endpoint, asked, 3) if loop == "closed" else open_loop(endpoint, asked, [0, 0.1, 0.2], timer)
    with pytest.raises(ServerError, match="no"):
        run(world, work)


def test_poisson_arrivals_have_the_rate_and_the_scatter_of_a_poisson_process() -> None:
    times = np.array(poisson_times(20.0, 4000, seed=3))
    gaps = np.diff(times)
    assert times[0] == 0 and (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 20, rel=0.05)  # an even pace would have none
    assert poisson_times(20.0, 4, seed=3) == times[:4].tolist()
    assert poisson_times(20.0, 4, seed=4) != times[:4].tolist()
    assert poisson_times(1.0, 0, seed=0) == []
