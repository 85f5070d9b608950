"""A request of several rows as several answers with one way back. Pure; knows who is last, not what is sent."""

import threading
from typing import Protocol

import numpy as np

from trtkit.errors import RequestError, TrtkitError
from trtkit.serving.tensor import Outputs


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


def replies_of(sender: Reply, num_rows: int) -> list[Reply]:
    """One Reply per row. A single row keeps the sender; rows of a batch say which they are in `batch_index`."""
    if num_rows == 1:
        return [sender]
    batch = _Batch(sender, num_rows)
    return [_Row(batch, row) for row in range(num_rows)]


def refuse_batch(num_rows: int, *, decoupled: bool) -> None:
    """Raise RequestError for several rows where one response must hold everything."""
    if num_rows != 1 and not decoupled:
        raise RequestError(
            f"the request has {num_rows} rows, and the model is not decoupled",
            "send one request per prompt, they run together; or build with serving.streaming: true",
            code="REQ-BATCH",
        )


class _Batch:
    """Counts the rows that are not finished; the response that finishes the last one is the final one."""

    def __init__(self, sender: Reply, num_rows: int) -> None:
        self.sender = sender
        self.lock = threading.Lock()
        self._num_open = num_rows

    def closes(self, row_is_final: bool) -> bool:
        """Note a row's response; true for the last response of all. Called with the lock held."""
        self._num_open -= row_is_final
        return self._num_open == 0


class _Row:
    def __init__(self, batch: _Batch, row: int) -> None:
        self._batch = batch
        self._row = row

    def send(self, outputs: Outputs, *, final: bool) -> None:
        index = {"batch_index": np.array([[self._row]], dtype=np.int32)}
        with self._batch.lock:
            self._batch.sender.send({**outputs, **index}, final=self._batch.closes(final))

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        with self._batch.lock:
            self._batch.sender.fail(error, final=self._batch.closes(final))

    def is_cancelled(self) -> bool:
        return self._batch.sender.is_cancelled()
