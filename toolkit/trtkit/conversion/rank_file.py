"""RankFile: one safetensors file written front to back, once, whole or not at all. Knows bytes, not what they mean."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.stored_tensor import code_of_dtype, itemsize_of
from trtkit.conversion.checksum import Crc32
from trtkit.conversion.write_lanes import WriteLanes

_ALIGNMENT = 8
_FLUSH_BYTES = 64 << 20


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

    `lanes` compute the checksum and start flushing while the next bytes are prepared.
    """

    def __init__(self, path: Path, tensors: Sequence[TensorHeader], lanes: WriteLanes) -> None:
        header = header_bytes(tensors)
        self.path = path
        self.num_bytes = len(header) + sum(tensor.num_bytes for tensor in tensors)
        self._beside = path.with_name(f".{path.name}.partial")
        self._file = self._beside.open("wb", buffering=0)
        self._digest = Crc32()
        self._lanes = lanes
        self._written = 0
        self._flushed = 0
        self.append(header)

    def append(self, data: NDArray[Any] | bytes) -> None:
        """Write the bytes of a C-contiguous array, which must not change afterwards."""
        view = memoryview(data if isinstance(data, bytes) else data.reshape(-1).view(np.uint8).data)
        self._lanes.update(self._digest, view)
        self._written += len(view)
        while view:
            view = view[self._file.write(view) :]
        if self._written - self._flushed >= _FLUSH_BYTES:
            self._flushed = self._written
            self._lanes.flush_soon(self._file.fileno())

    def finish(self) -> str:
        """Flush to disk, rename into place, and return the CRC-32 of the whole file."""
        assert self._written == self.num_bytes, f"{self.path.name}: {self._written} bytes written of {self.num_bytes}"
        self._lanes.settle()
        os.fsync(self._file.fileno())
        self._file.close()
        self._beside.replace(self.path)
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close and remove what was written; nothing happens after `finish`."""
        self._file.close()
        self._beside.unlink(missing_ok=True)
