"""Work beside the writing: checksums and early flushing, each on a thread of its own. Knows buffers and descriptors.

Hashing and the disk then cost no time of their own: hashlib and fdatasync release the interpreter lock, and by the time
a file is complete most of it has reached the disk.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Protocol

_MOST_WAITING = 16


class Digest(Protocol):
    """What hashlib returns."""

    def update(self, data: memoryview, /) -> None:
        """Take more bytes."""
        ...


class WriteLanes:
    """Two single threads. At most _MOST_WAITING buffers wait for their checksum, which bounds the memory."""

    def __init__(self) -> None:
        self._hashing = ThreadPoolExecutor(1, "checksum")
        self._flushing = ThreadPoolExecutor(1, "flush")
        self._places = BoundedSemaphore(_MOST_WAITING)
        self._flush: Future[None] | None = None

    def __enter__(self) -> "WriteLanes":
        return self

    def __exit__(self, *_: object) -> None:
        self._hashing.shutdown(cancel_futures=True)
        self._flushing.shutdown(cancel_futures=True)

    def update(self, digest: Digest, data: memoryview) -> None:
        """Feed `data` to `digest`, in the order of the calls; the caller must not change it any more."""
        self._places.acquire()
        self._hashing.submit(self._update, digest, data)

    def flush_soon(self, descriptor: int) -> None:
        """Start writing the file's pages to the disk, unless a flush is still under way."""
        if self._flush is None or self._flush.done():
            self._flush = self._flushing.submit(os.fdatasync, descriptor)

    def settle(self) -> None:
        """Wait until everything handed over so far is done. Raises the OSError of a failed flush."""
        self._hashing.submit(int).result()
        if self._flush is not None:
            self._flush.result()
            self._flush = None

    def _update(self, digest: Digest, data: memoryview) -> None:
        try:
            digest.update(data)
        finally:
            self._places.release()
