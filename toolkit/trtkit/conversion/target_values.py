"""TargetValues: a rank's part of a tensor as float32 matrices, for encoders that need all of it at once."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trtkit.conversion.casting import has_non_finite, to_float32
from trtkit.conversion.layout import Slice, Target
from trtkit.conversion.source_files import SourceFiles


class TargetValues:
    """Reads targets through `source`; holds one matrix at a time."""

    def __init__(self, source: SourceFiles) -> None:
        self._source = source

    def matrices(self, target: Target) -> Iterator[NDArray[np.float32]]:
        """[outputs, inputs] of the target; for stacked experts one matrix per expert."""
        per_matrix = len(target.slices) // (target.stacked or 1)
        for first in range(0, len(target.slices), per_matrix):
            yield self._matrix(target.slices[first : first + per_matrix])

    def _matrix(self, slices: tuple[Slice, ...]) -> NDArray[np.float32]:
        """The slices stacked, filled block by block so that only one float32 copy exists."""
        shapes = [piece.target_shape for piece in slices]
        matrix = np.zeros((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=np.float32)
        row = 0
        for piece, shape in zip(slices, shapes, strict=True):
            self._fill(matrix[row : row + shape[0]], piece)
            row += shape[0]
        return matrix

    def _fill(self, out: NDArray[np.float32], piece: Slice) -> None:
        dtype = self._source.dtype_of(piece.source)
        destination = out.T if piece.transposed else out
        first = 0
        for block in self._source.blocks(piece.source, piece.rows, piece.columns):
            if has_non_finite(np.ascontiguousarray(block), dtype):
                self._source.non_finite.add(piece.source)
            destination[first : first + len(block)] = to_float32(block, dtype)
            first += len(block)
