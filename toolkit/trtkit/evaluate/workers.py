"""Threads that ask a deployment, and are not waited for once the asking is given up. Knows no requests."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager


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
