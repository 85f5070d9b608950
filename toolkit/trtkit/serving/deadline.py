"""The time that a request may take: its end stops what is under way. Knows a clock and a way to stop, no request."""

import threading
import time
from collections.abc import Callable, Iterator
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
        left_s = min(max(0.0, self._left_s(self._timeout_s)), threading.TIMEOUT_MAX)
        timer = threading.Timer(left_s, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except TrtkitError:
            self.check()
            raise
        finally:
            timer.cancel()

    def check(self) -> None:
        """Raise RequestError REQ-DEADLINE when the time is over: what was made by then is no whole answer."""
        if self._timeout_s is not None and self._left_s(self._timeout_s) <= 0:
            raise RequestError(
                f"the answer was not finished within the request's timeout of {self._timeout_s:g} s",
                "ask for fewer tokens, or allow more time",
                code="REQ-DEADLINE",
            )

    def _left_s(self, timeout_s: float) -> float:
        return self._started_at + timeout_s - self._clock_s()
