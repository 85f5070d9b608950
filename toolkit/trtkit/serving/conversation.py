"""Streams to the models, kept open from one answer to the next. Knows when one may be used again, no tensors."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from trtkit.serving.tensor import Outputs

_MAX_IDLE = 8  # each keeps two threads


class Stream(Protocol):
    """What carries the requests; serving.kserve has it."""

    is_settled: bool

    def ask(self, message: Any) -> Iterator[Outputs]:
        """The responses to one request."""
        ...

    def cancel(self) -> None:
        """Stop the request under way and end the stream."""
        ...

    def close(self) -> None:
        """Give the stream up."""
        ...


class StreamSource(Protocol):
    """Where new streams come from."""

    def open_stream(self) -> Stream:
        """A stream of its own."""
        ...


class Conversations:
    """Lends each answer a stream of its own; any number of threads may borrow at the same time."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._idle: queue.LifoQueue[Stream] = queue.LifoQueue(_MAX_IDLE)

    @contextmanager
    def borrow(self) -> Iterator["Conversation"]:
        """A stream for one answer. It is kept unless the answer left responses on it unread, or cancelled it."""
        try:
            stream = self._idle.get_nowait()
        except queue.Empty:
            stream = self._source.open_stream()
        conversation = Conversation(stream)
        try:
            yield conversation
        finally:
            if conversation.release():
                self._keep(stream)
            else:
                stream.close()

    def close(self) -> None:
        """Give the idle streams up."""
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _keep(self, stream: Stream) -> None:
        try:
            self._idle.put_nowait(stream)
        except queue.Full:
            stream.close()


class Conversation:
    """One answer's hold on a stream. `cancel` comes from any thread and may come late, when others hold the stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._is_open = True
        self._is_cancelled = False

    def ask(self, message: Any) -> Iterator[Outputs]:
        """The responses to one request; read them to the end before the next `ask`. Raises the model's error."""
        return self._stream.ask(message)

    def cancel(self) -> None:
        """Stop the request under way and end the stream; without effect after `release`."""
        with self._lock:
            if self._is_open:
                self._is_cancelled = True
                self._stream.cancel()

    def release(self) -> bool:
        """Let the stream go; whether the next answer may have it."""
        with self._lock:
            self._is_open = False
            return self._stream.is_settled and not self._is_cancelled
