"""Plain encoding: values are copied, or cast one by one, block by block. Knows no families."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.stored_tensor import bits_of
from trtkit.conversion.casting import cast, from_float32, has_non_finite, to_float32
from trtkit.conversion.encoder import Sinks
from trtkit.conversion.layout import Slice, Target
from trtkit.conversion.rank_file import RankFile, TensorHeader
from trtkit.conversion.source_files import SourceFiles


class PlainEncoder:
    """Writes targets in one float dtype. add_one stores w + 1, summed in float32 (Gemma's norms).

    scales: source name -> what FP8 codes are multiplied with.
    """

    def __init__(
        self, source: SourceFiles, dtype: str, add_one: bool = False, scales: Mapping[str, float] | None = None
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._multipliers = scales or {}
        self._convert = cache(lambda stored: cast(stored, dtype, add_one))

    def headers(self, target: Target) -> list[TensorHeader]:
        """One tensor of the target's name and shape."""
        return [TensorHeader(target.name, self._dtype, target.shape)]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the target to every sink; targets[r] is rank r's part of the same tensor."""
        for pieces in zip(*(target.slices for target in targets), strict=True):
            for group in _sharing_rows(pieces, sinks):
                self._write_group(group)

    def _write_group(self, group: list[tuple[Slice, RankFile]]) -> None:
        """Slices of the same rows of one source: each block is read once and cut for every rank."""
        for block, left in self._blocks(group):
            for piece, sink in group:
                own = block
                if piece.columns is not None and not piece.transposed:
                    own = block[:, piece.columns[0] - left : piece.columns[1] - left]
                sink.append(self.encoded(np.ascontiguousarray(own), piece.source))
        for piece, sink in group:
            if piece.mean_rows:
                sink.append(np.tile(self._mean_row(piece), (piece.mean_rows, 1)))
            if piece.padding_rows:
                width = piece.target_shape[1:]
                sink.append(np.zeros((piece.padding_rows, *width), dtype=bits_of(self._dtype)))

    def _blocks(self, group: list[tuple[Slice, RankFile]]) -> Iterator[tuple[NDArray[Any], int]]:
        """Blocks of the columns that the group spans, and the first of those columns."""
        first = group[0][0]
        if first.transposed:
            yield self._source.whole(first.source, first.rows, first.columns).T, 0
            return
        spans = [piece.columns for piece, _ in group if piece.columns is not None]
        left, right = min((start for start, _ in spans), default=0), max((stop for _, stop in spans), default=0)
        columns = (left, right) if spans else None
        yield from ((block, left) for block in self._source.blocks(first.source, first.rows, columns))

    def _mean_row(self, piece: Slice) -> NDArray[Any]:
        """The mean of all rows of the piece's source, summed in float64, as bits [1, columns]."""
        name, num_rows = piece.source, self._source.num_rows(piece.source)
        blocks = self._source.blocks(name, (0, num_rows), piece.columns)
        sums = [to_float32(block, self._source.dtype_of(name)).sum(axis=0, dtype=np.float64) for block in blocks]
        mean = np.sum(sums, axis=0) / num_rows * self._multipliers.get(name, 1.0)
        return from_float32(mean.astype(np.float32)[None], self._dtype)

    def encoded(self, bits: NDArray[Any], name: str) -> NDArray[Any]:
        """The bits of source tensor `name` in the target dtype; NaN and Inf are noted."""
        stored = self._source.dtype_of(name)
        if name in self._multipliers:
            return from_float32(to_float32(bits, stored) * np.float32(self._multipliers[name]), self._dtype)
        if has_non_finite(bits, stored):
            self._source.non_finite.add(name)
        convert = self._convert(stored)
        if convert is None:
            return bits
        encoded = convert(bits)
        if name not in self._source.non_finite and has_non_finite(encoded, self._dtype):
            self._source.overflowed.add(name)
        return encoded


def _sharing_rows(pieces: Sequence[Slice], sinks: Sinks) -> list[list[tuple[Slice, RankFile]]]:
    """The ranks' pieces in groups that read the same rows of the same source; finished files are left out."""
    groups: dict[tuple[object, ...], list[tuple[Slice, RankFile]]] = {}
    for piece, sink in zip(pieces, sinks, strict=True):
        if sink is not None:
            key = (piece.source, piece.rows, piece.columns if piece.transposed else None)
            groups.setdefault(key, []).append((piece, sink))
    return list(groups.values())
