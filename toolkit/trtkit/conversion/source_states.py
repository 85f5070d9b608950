"""SourceStates: whether files are still those that were there before any was read. Knows no content and no format."""

import os
from collections.abc import Iterable
from pathlib import Path

from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.checkpoints.quantized import QUANT_FILE
from trtkit.checkpoints.weights import INDEX_NAME, weight_files
from trtkit.conversion.hf_files import hf_files
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

State = tuple[int, int, int]
"""Inode, bytes, and nanoseconds of the last change of the content."""
_ABSENT: State = (0, 0, 0)
_BESIDE_WEIGHTS = ("config.json", INDEX_NAME, QUANT_FILE, DRAFT_VOCABULARY_FILE)


class SourceStates:
    """What files looked like when this was made. One that was not there must not appear either."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._states = {file: _state_of(file) for file in files}

    def key_of(self, file: Path) -> list[int]:
        """What of a file's state enters the identity of a conversion: bytes and time, not the inode."""
        return list(self._states.get(file, _ABSENT)[1:])

    def check(self) -> None:
        """Raise CheckpointError CKPT-CHANGED when a file was replaced, resized, written to, removed or added."""
        for file, state in self._states.items():
            if _state_of(file) != state:
                raise changed(file)

    def open(self, file: Path) -> int:
        """A descriptor of the very file whose state was taken. Raises CheckpointError CKPT-CHANGED."""
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise changed(file) from None
        if _as_state(os.fstat(descriptor)) != self._states.get(file):
            os.close(descriptor)
            raise changed(file)
        return descriptor


def checkpoint_states(source: Path, options: ConversionOptions) -> SourceStates:
    """The state of everything that a conversion of `source` reads; to be taken before it reads.

    Raises what weight_files raises.
    """
    files = [source / name for name in _BESIDE_WEIGHTS] + weight_files(source)
    if options.output_format == "hf":
        files += [source / name for name in hf_files(source)]
    if options.calibration is not None:
        files.append(options.calibration)
    return SourceStates(files)


def changed(file: Path) -> CheckpointError:
    """The error for a file that is another one now."""
    return CheckpointError(
        "changed while it was being converted",
        "wait until the download or save has finished, then run the same command again",
        code="CKPT-CHANGED",
        where=str(file),
    )


def _state_of(file: Path) -> State:
    try:
        return _as_state(file.stat())
    except OSError:
        return _ABSENT


def _as_state(stat: os.stat_result) -> State:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
