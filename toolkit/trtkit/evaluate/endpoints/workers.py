"""Threads and event loops that ask a deployment; given up, they are not waited for. Knows no requests."""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, also where this thread runs a loop already, as in a notebook or an asynchronous test."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    """A pool for requests that block. The main thread waits for results, where a signal reaches it: inside gRPC, none
    does. After a failure or an interruption nothing is waited for; closing the endpoint ends what is under way."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
