"""PassFiles: what a pass has on disk while it runs, so that it can go on after an interruption. Knows files, no model.

layers/0007.npz     the finished record of a layer
state-0008.bin      what enters the next layer: all samples one after the other, raw; written before the record of
                    the layer that made it, removed when it is no longer needed
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from trtkit.calibration.records import LayerRecord, is_whole_record, read_layer_record, write_layer_record


class PassFiles:
    """The files of one pass in the directory `folder`. lengths: tokens of each sample; states are [1, T, width]."""

    def __init__(self, folder: Path, lengths: Sequence[int], width: int, dtype: torch.dtype) -> None:
        self._folder = folder
        self._lengths = lengths
        self._width = width
        self._dtype = dtype
        self._row_bytes = width * dtype.itemsize
        (folder / "layers").mkdir(exist_ok=True)

    def next_layer(self) -> int | None:
        """The first layer without a whole record, when the state that enters it is whole; None for a new pass."""
        number = 0
        while is_whole_record(self._record(number)):
            number += 1
        state = self._state(number)
        expected = sum(self._lengths) * self._row_bytes
        return number if state.is_file() and state.stat().st_size == expected else None

    def write_states(self, number: int, states: Iterator[Tensor]) -> None:
        """Write what enters layer `number`, whole or not at all."""
        with self._beside(self._state(number)) as file:
            for state in states:
                file.write(state.cpu().contiguous().view(torch.uint8).numpy().data)

    def states(self, number: int) -> Iterator[Tensor]:
        """What enters layer `number`, sample by sample."""
        with self._state(number).open("rb") as file:
            for length in self._lengths:
                buffer = bytearray(file.read(length * self._row_bytes))
                yield torch.frombuffer(buffer, dtype=self._dtype).view(1, length, self._width)

    def finish_layer(self, record: LayerRecord) -> None:
        """Write the record and forget the state that entered the layer."""
        write_layer_record(record, self._record(record.layer))
        self._state(record.layer).unlink(missing_ok=True)

    def finish(self) -> None:
        """Forget every state."""
        for path in self._folder.glob("state-*"):
            path.unlink()

    def _record(self, number: int) -> Path:
        return record_path(self._folder, number)

    def _state(self, number: int) -> Path:
        return self._folder / f"state-{number:04}.bin"

    @contextmanager
    def _beside(self, path: Path) -> Iterator[BinaryIO]:
        beside = path.with_suffix(".tmp")
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def record_path(folder: Path, layer: int) -> Path:
    """Where the record of a layer lies in a pass's directory."""
    return folder / "layers" / f"{layer:04}.npz"


def read_records(folder: Path) -> Iterator[LayerRecord]:
    """The records of a finished pass, in order of layers."""
    for path in sorted((folder / "layers").glob("*.npz")):
        yield read_layer_record(path)


def are_whole_records(folder: Path) -> bool:
    """Whether every record of a finished pass can still be read."""
    return all(is_whole_record(path) for path in (folder / "layers").glob("*.npz"))
