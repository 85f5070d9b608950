"""RankFile: one safetensors file written front to back, once, whole or not at all. Knows bytes, not what they mean."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.stored_tensor import code_of_dtype, itemsize_of
from trtkit.conversion.checksum import Crc32
from trtkit.conversion.disk_file import DiskFile
from trtkit.conversion.write_lanes import Block, WriteLanes

_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorHeader:
    """Name, dtype and shape of a tensor that will be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Length of its data."""
        size = itemsize_of(self.dtype)
        for length in self.shape:
            size *= length
        return size


def header_bytes(tensors: Sequence[TensorHeader]) -> bytes:
    """The length and the JSON of a safetensors file holding `tensors` in this order, padded with spaces to 8 bytes."""
    entries: dict[str, Any] = {}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": code_of_dtype(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.num_bytes],
        }
        offset += tensor.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


class RankFile:
    """Appends to a file beside the final one; `finish` flushes it to disk and puts it in place.

    While one block is filled, the `lanes` hash and write the other.
    """

    def __init__(self, path: Path, tensors: Sequence[TensorHeader], lanes: WriteLanes) -> None:
        header = header_bytes(tensors)
        self.path = path
        self.num_bytes = len(header) + sum(tensor.num_bytes for tensor in tensors)
        self._beside = path.with_name(f".{path.name}.partial")
        self._digest = Crc32()
        self._lanes = lanes
        self._filling, self._other = Block(), Block()
        self._written = 0
        self._file = DiskFile(self._beside)
        try:
            self.append(header)
        except BaseException:
            self.abandon()
            raise

    def append(self, data: NDArray[Any] | bytes) -> None:
        """Write the bytes of a C-contiguous array."""
        values = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
        self._written += len(values)
        while len(values):
            values = values[self._filling.fill(values) :]
            if self._filling.is_full:
                self._hand_over()

    def finish(self) -> str:
        """Flush to disk, rename into place, and return the CRC-32 of the whole file."""
        assert self._written == self.num_bytes, f"{self.path.name}: {self._written} bytes written of {self.num_bytes}"
        self._hand_over()
        self._other.empty()
        self._file.finish()
        self._beside.replace(self.path)
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close and remove what was written; nothing happens after `finish`."""
        for block in (self._filling, self._other):
            block.wait()
        self._file.close()
        self._beside.unlink(missing_ok=True)

    def _hand_over(self) -> None:
        self._lanes.take(self._filling, self._digest, self._file)
        self._filling, self._other = self._other, self._filling
        self._filling.empty()
