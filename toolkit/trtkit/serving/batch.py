"""A request of several rows as several answers with one way back. Pure; knows who is last, not what is sent."""

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.tensor import Outputs

_MAX_SEQUENCES = 128


class Reply(Protocol):
    """Where the responses to one answer go."""

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """One response; with `final` the last one."""
        ...

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        """A response that is an error."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the caller gave the request up."""
        ...


def replies_of(sender: Reply, places: Sequence[tuple[int, int]]) -> list[Reply]:
    """One Reply for each answer, which is a (row of the batch, sequence of that row).

    A single answer keeps the sender; several say which they are in `batch_index` and `sequence_index`.
    """
    if len(places) == 1:
        return [sender]
    batch = _Batch(sender, len(places))
    return [_Answer(batch, row, sequence) for row, sequence in places]


def num_sequences(asked: int | None) -> int:
    """Answers wanted of one row. Raises RequestError for none, and for so many that others would wait for minutes."""
    if asked is not None and not 1 <= asked <= _MAX_SEQUENCES:
        raise RequestError(
            f"input num_return_sequences must be between 1 and {_MAX_SEQUENCES}, got {asked}",
            "ask for fewer, in several requests",
            code="REQ-SEQUENCES",
        )
    return asked or 1


def refuse_batch(num_answers: int, *, decoupled: bool) -> None:
    """Raise RequestError for several answers where one response must hold everything."""
    if num_answers != 1 and not decoupled:
        raise RequestError(
            f"the request asks for {num_answers} answers, and the model is not decoupled",
            "send one request per prompt and sequence, they run together; or build with serving.streaming: true",
            code="REQ-BATCH",
        )


class _Batch:
    """Counts the answers that are not finished; the response that finishes the last one is the final one."""

    def __init__(self, sender: Reply, num_answers: int) -> None:
        self.sender = sender
        self.lock = threading.Lock()
        self._num_open = num_answers

    def closes(self, is_final: bool) -> bool:
        """Note an answer's response; true for the last response of all. Called with the lock held."""
        self._num_open -= is_final
        return self._num_open == 0


class _Answer:
    def __init__(self, batch: _Batch, row: int, sequence: int) -> None:
        self._batch = batch
        self._index = {"batch_index": np.array([[row]]), "sequence_index": np.array([[sequence]])}

    def send(self, outputs: Outputs, *, final: bool) -> None:
        with self._batch.lock:
            self._batch.sender.send({**outputs, **self._index}, final=self._batch.closes(final))

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        with self._batch.lock:
            self._batch.sender.fail(error, final=self._batch.closes(final))

    def is_cancelled(self) -> bool:
        return self._batch.sender.is_cancelled()
