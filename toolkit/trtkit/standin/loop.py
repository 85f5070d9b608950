"""The thread that runs the engine: requests join between steps, answers leave after each. Knows no tensors."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trtkit.errors import RequestError, ServerError
from trtkit.reference.request import GenerationRequest, StepOutput
from trtkit.standin.exchange import Exchange


class StepEngine(Protocol):
    """What the loop needs of the reference engine."""

    @property
    def has_work(self) -> bool:
        """A call of step would do or report something."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestError."""
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request."""
        ...

    def step(self) -> list[StepOutput]:
        """Advance every request."""
        ...


@dataclass(frozen=True)
class _Cancel:
    """Cancel the requests that a client knows by this id; `done` is called when that has happened."""

    client_id: str
    done: Callable[[], None]


class EngineLoop:
    """Owns the engine: one thread calls it, others leave work here.

    A request that its caller gave up is noticed within cancellation_period_s, as NVIDIA's backend does it. on_finished
    is called in that thread for every answer that came to its end.
    """

    def __init__(
        self,
        engine: StepEngine,
        *,
        cancellation_period_s: float,
        on_finished: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._on_finished = on_finished
        self._cancellation_period_s = cancellation_period_s
        self._inbox: queue.SimpleQueue[tuple[str, Exchange] | _Cancel | None] = queue.SimpleQueue()
        self._exchanges: dict[str, tuple[str, Exchange]] = {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._thread.start()

    def submit(self, client_id: str, exchange: Exchange) -> None:
        """Start an answer; it is sent through the exchange, errors included."""
        self._inbox.put((client_id, exchange))
        if self._has_ended.is_set():
            self._fail_what_is_left()

    def cancel(self, client_id: str, done: Callable[[], None]) -> None:
        """Cancel what this client id has under way; harmless when there is nothing."""
        self._inbox.put(_Cancel(client_id, done))

    def close(self) -> None:
        """End every answer with an error and stop the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._advance_until_closed()
        finally:
            # Also when the engine raised what nobody expected: no caller may wait for an answer that never comes.
            self._has_ended.set()
            self._fail_what_is_left()

    def _advance_until_closed(self) -> None:
        looked_at = time.monotonic()
        while self._take_work():
            self._step()
            if time.monotonic() - looked_at >= self._cancellation_period_s:
                looked_at = time.monotonic()
                self._drop_abandoned()

    def _fail_what_is_left(self) -> None:
        left = [exchange for _, exchange in self._exchanges.values()]
        self._exchanges.clear()
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, _Cancel):
                item.done()
            elif item is not None:
                left.append(item[1])
        for exchange in left:
            exchange.reply.fail(
                ServerError(
                    "the engine's thread has ended", "load the model again; see the server's log", code="ENGINE-GONE"
                )
            )

    def _take_work(self) -> bool:
        """Take everything from the inbox; wait for it when the engine has nothing to do. False means stop."""
        while not (self._engine.has_work and self._inbox.empty()):
            item = self._inbox.get()
            if item is None:
                return False
            if isinstance(item, _Cancel):
                self._cancel(item)
            else:
                self._start(*item)
        return True

    def _start(self, client_id: str, exchange: Exchange) -> None:
        generation = exchange.request.generation
        try:
            self._engine.submit(generation)
        except RequestError as error:
            exchange.reply.fail(error)
        else:
            self._exchanges[generation.request_id] = (client_id, exchange)

    def _cancel(self, item: _Cancel) -> None:
        for engine_id, (client_id, _) in self._exchanges.items():
            if client_id == item.client_id:
                self._engine.cancel(engine_id)
        item.done()

    def _step(self) -> None:
        began_ns = time.time_ns()
        for output in self._engine.step():
            known = self._exchanges.get(output.request_id)
            if known is not None and known[1].take(output, began_ns):
                del self._exchanges[output.request_id]
                self._on_finished(known[1])
                if not output.finished:
                    self._engine.cancel(output.request_id)

    def _drop_abandoned(self) -> None:
        for engine_id, (_, exchange) in self._exchanges.items():
            if exchange.reply.is_cancelled():
                self._engine.cancel(engine_id)
