"""How long a deployment may say nothing while answers are awaited. Knows time and a thread, no protocol."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trtkit.errors import ServerError, TrtkitError
from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest, Generation

LONGEST_SILENCE_S = 600.0
"""A long prompt on a slow CPU, or a server that compiles at its first request, takes minutes to its first token."""


class Patience:
    """Gives a deployment up once nothing came for LONGEST_SILENCE_S, whichever of the awaited answers it was for.

    An answer that waits its turn while others come is no reason: a load above capacity makes long queues.
    """

    def __init__(self, clock_ns: Callable[[], int], now_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_ns = clock_ns
        self._now_s = now_s
        self._limit_s = LONGEST_SILENCE_S
        self._lock = threading.Lock()
        self._num_awaited = 0
        self._heard_s = now_s()
        self._is_over = False

    def now_ns(self) -> int:
        """The time, for the endpoint to stamp requests and responses with: whenever it does, something goes on."""
        self._heard_s = self._now_s()
        return self._clock_ns()

    @property
    def left_s(self) -> float:
        """How much longer silence is borne; the whole limit while nothing is awaited."""
        return self._limit_s - (self._now_s() - self._heard_s if self._num_awaited else 0.0)

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """While one answer is awaited. Raises ServerError for whatever giving up made of it."""
        with self._lock:
            self._num_awaited += 1
            self._heard_s = self._now_s()
        try:
            yield
        except (TrtkitError, asyncio.CancelledError):
            if self._is_over:
                raise self._silent() from None
            raise
        finally:
            with self._lock:
                self._num_awaited -= 1

    @contextmanager
    def limited(self, give_up: Callable[[], object]) -> Iterator[None]:
        """Call give_up, in another thread, when the silence was too long; it is to end the answers under way."""
        ends = threading.Event()

        def watch() -> None:
            while not ends.wait(self.left_s):
                if self.left_s <= 0:
                    self._is_over = True
                    give_up()
                    return

        # A daemon: a command that is interrupted does not wait for it.
        threading.Thread(target=watch, name="silence", daemon=True).start()
        try:
            yield
        finally:
            ends.set()

    def _silent(self) -> ServerError:
        return ServerError(
            f"the server took a request, and then nothing came for {self._limit_s:g} s",
            "see its log: it hangs, or is far too slow for these prompts; restart it, or ask for less",
            code="SERVER-SILENT",
        )


class PatientEndpoint:
    """An endpoint whose silence is limited."""

    def __init__(self, endpoint: Endpoint, patience: Patience) -> None:
        self._endpoint = endpoint
        self._patience = patience

    def generate(self, request: EndpointRequest) -> Generation:
        """What the endpoint answers. Raises what it raises, and ServerError when nothing comes any more."""
        with self._patience.awaiting():
            return self._endpoint.generate(request)
