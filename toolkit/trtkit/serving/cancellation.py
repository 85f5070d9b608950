"""Asks now and then whether a caller gave up. Knows a clock; each question to Triton costs a message."""

import time
from collections.abc import Callable


class PolledCancellation:
    """Remembers a cancellation, and asks at most once per period."""

    def __init__(self, ask: Callable[[], bool], period_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._period_s = period_s
        self._clock_s = clock_s
        self._asked_at = clock_s()
        self._is_cancelled = False

    def is_cancelled(self) -> bool:
        """Whether the caller gave up, as far as is known."""
        now = self._clock_s()
        if not self._is_cancelled and now - self._asked_at >= self._period_s:
            self._asked_at = now
            self._is_cancelled = self._ask()
        return self._is_cancelled
