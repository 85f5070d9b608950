"""SourceFiles: reads rectangles of stored tensors in blocks of bounded size. Knows files and offsets, no rules.

Plain reads into fresh buffers rather than memory maps: a file that shrinks under a map kills the process, a short read
is an error that can be reported; and resident memory stays at a few blocks.
"""

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.stored_tensor import StoredTensor, bits_of
from trtkit.conversion.casting import has_non_finite
from trtkit.conversion.source_states import SourceStates, changed
from trtkit.errors import CheckpointError

BLOCK_BYTES = 2 << 20


class SourceFiles:
    """Open files of one checkpoint. states: what they looked like before their headers, `weights`, were read.

    names maps the rules' source names to the stored ones. non_finite and overflowed collect the tensors in which NaN
    or Inf was met while reading, or appeared while casting.
    """

    def __init__(self, weights: Mapping[str, StoredTensor], names: Mapping[str, str], states: SourceStates) -> None:
        self._weights = {name: weights[stored] for name, stored in names.items()}
        self.non_finite: set[str] = set()
        self.overflowed: set[str] = set()
        self._descriptors: dict[Path, int] = {}
        self._states = states

    def __enter__(self) -> "SourceFiles":
        try:
            for file in sorted({tensor.file for tensor in self._weights.values()}):
                self._descriptors[file] = self._states.open(file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def dtype_of(self, name: str) -> str:
        """The stored dtype."""
        return self._weights[name].dtype

    def num_rows(self, name: str) -> int:
        """Length of the tensor's first axis."""
        return self._weights[name].shape[0]

    @property
    def names(self) -> list[str]:
        """Every source name of the rules, in their order."""
        return list(self._weights)

    def holds_non_finite(self, name: str) -> bool:
        """Whether NaN or Inf is among the tensor's values."""
        return any(has_non_finite(block, self.dtype_of(name)) for block in self.all_blocks(name))

    def findings_in(self, names: Set[str]) -> dict[str, list[str]]:
        """What was met so far in these tensors, as a record that `add_findings` takes."""
        return {kind: sorted(found & names) for kind, found in self._findings().items()}

    def add_findings(self, record: Mapping[str, Sequence[str]]) -> None:
        """Take over what an earlier run met. Raises KeyError, TypeError or ValueError for anything but its record."""
        known = set(self._weights)
        taken = {kind: set(record[kind]) for kind in self._findings()}
        if not all(names <= known for names in taken.values()):
            raise ValueError("the record names tensors of another checkpoint")
        for kind, found in self._findings().items():
            found |= taken[kind]

    def _findings(self) -> dict[str, set[str]]:
        return {"non_finite": self.non_finite, "overflowed": self.overflowed}

    def check_unchanged(self) -> None:
        """Raise CheckpointError CKPT-CHANGED when a file is not the one whose header was read any more."""
        self._states.check()

    def blocks(self, name: str, rows: tuple[int, int], columns: tuple[int, int] | None) -> Iterator[NDArray[Any]]:
        """The rectangle in runs of whole rows of at most about BLOCK_BYTES, as bits [rows, columns] (or [rows])."""
        tensor = self._weights[name]
        width = tensor.num_elements // tensor.shape[0] if tensor.shape and tensor.shape[0] else 1
        row_bytes = width * bits_of(tensor.dtype).itemsize
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for first in range(rows[0], rows[1], step):
            last = min(first + step, rows[1])
            bits = self._read(tensor, first * row_bytes, last * row_bytes)
            if columns is None:
                yield bits
            else:
                yield bits.reshape(last - first, width)[:, columns[0] : columns[1]]

    def all_blocks(self, name: str) -> Iterator[NDArray[Any]]:
        """Every value of the tensor, in runs of rows."""
        return self.blocks(name, (0, self._weights[name].shape[0]), None)

    def whole(self, name: str, rows: tuple[int, int], columns: tuple[int, int] | None) -> NDArray[Any]:
        """The rectangle at once."""
        return np.concatenate(list(self.blocks(name, rows, columns)))

    def _read(self, tensor: StoredTensor, start: int, stop: int) -> NDArray[Any]:
        buffer = np.empty(stop - start, dtype=np.uint8)
        done = 0
        while done < buffer.size:
            count = os.preadv(self._descriptors[tensor.file], [buffer[done:].data], tensor.start + start + done)
            if count == 0:
                raise changed(tensor.file)
            done += count
        return buffer.view(bits_of(tensor.dtype))


def refuse_non_finite(files: SourceFiles, where: Path) -> None:
    """Read everything once. Raises CheckpointError CKPT-NAN naming the tensors that hold NaN or Inf."""
    names = [name for name in files.names if files.holds_non_finite(name)]
    if names:
        raise CheckpointError(
            f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} hold NaN or Inf",
            "take the weights from their source again, or convert without --strict",
            code="CKPT-NAN",
            where=str(where),
        )
