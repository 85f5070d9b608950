"""Work beside the preparing of values: checksums and the disk, each on a thread of its own. Knows blocks, no tensors.

Both release the interpreter lock, so neither costs time of its own while the next block is filled.
"""

import mmap
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from trtkit.conversion.checksum import Crc32
from trtkit.conversion.disk_file import DiskFile

BLOCK_BYTES = 4 << 20


class WriteLanes:
    """Two single threads: everything is hashed and written in the order in which it was handed over."""

    def __init__(self) -> None:
        self._hashing = ThreadPoolExecutor(1, "checksum")
        self._writing = ThreadPoolExecutor(1, "write")

    def __enter__(self) -> "WriteLanes":
        return self

    def __exit__(self, *_: object) -> None:
        for lane in (self._hashing, self._writing):
            lane.shutdown(cancel_futures=True)

    def take(self, block: "Block", digest: Crc32, file: DiskFile) -> None:
        """Hash and write what the block holds; the block is busy until `block.empty`."""
        data = memoryview(block.memory)[: block.length]
        block.jobs = [self._hashing.submit(digest.update, data), self._writing.submit(file.write, data)]


class Block:
    """Page-aligned memory that is filled, handed to the lanes, and filled again."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, BLOCK_BYTES)
        self.length = 0
        self.jobs: list[Future[None]] = []

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self.length == BLOCK_BYTES

    def fill(self, values: NDArray[np.uint8]) -> int:
        """Copy as many bytes as fit, and tell how many."""
        count = min(len(values), BLOCK_BYTES - self.length)
        np.frombuffer(self.memory, np.uint8)[self.length : self.length + count] = values[:count]
        self.length += count
        return count

    def wait(self) -> None:
        """Wait until the lanes are done with it, well or not."""
        wait(self.jobs)

    def empty(self) -> None:
        """Wait until the lanes are done with it. Raises the OSError of a failed write."""
        for job in self.jobs:
            job.result()
        self.jobs = []
        self.length = 0
