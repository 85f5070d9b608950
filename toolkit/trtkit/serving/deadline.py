"""The time that a request may take: its end stops what is under way. Knows a clock and a way to stop, no request."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from trtkit.errors import RequestError, TrtkitError


class Deadline:
    """timeout_s after `started_at` (monotonic seconds); None is never."""

    def __init__(self, timeout_s: float | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock_s = clock_s
        self._started_at = clock_s()

    @contextmanager
    def enforced(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` from another thread if the body is still running when the time is over.

        A model that hangs never answers, so asking between steps is not enough. What the stop makes fail is reported as
        what it is: RequestError REQ-DEADLINE.
        """
        if self._timeout_s is None:
            yield
            return
        timer = self._timer(self._timeout_s, stop)
        try:
            yield
        except TrtkitError:
            self.check()
            raise
        finally:
            timer.cancel()

    def bound_waiting(self, waiting: Future[None], fail: Callable[[TrtkitError], object]) -> None:
        """Call `fail` with RequestError REQ-DEADLINE if the work has not begun when the time is over; it never will."""
        if self._timeout_s is None:
            return

        def give_up() -> None:
            if waiting.cancel():
                fail(self._late())

        timer = self._timer(self._timeout_s, give_up)
        waiting.add_done_callback(lambda _: timer.cancel())

    def check(self) -> None:
        """Raise RequestError REQ-DEADLINE when the time is over: what was made by then is no whole answer."""
        if self._timeout_s is not None and self._left_s(self._timeout_s) <= 0:
            raise self._late()

    def _late(self) -> RequestError:
        return RequestError(
            f"the answer was not finished within the request's timeout of {self._timeout_s:g} s",
            "ask for fewer tokens, or allow more time",
            code="REQ-DEADLINE",
        )

    def _timer(self, timeout_s: float, action: Callable[[], object]) -> threading.Timer:
        timer = threading.Timer(min(max(0.0, self._left_s(timeout_s)), threading.TIMEOUT_MAX), action)
        timer.daemon = True
        timer.start()
        return timer

    def _left_s(self, timeout_s: float) -> float:
        return self._started_at + timeout_s - self._clock_s()
