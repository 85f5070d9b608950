"""Segments of many sequences become the flat inputs of one pass. Ints and lists only; knows the cache's geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trtkit.reference.scheduler.scheduler import Segment

# Keys are read in whole blocks of this many positions, so that a row sees the same block boundaries in every pass.
TILE = 64


@dataclass(frozen=True)
class Tile:
    """Rows of one sequence whose positions lie in one block of TILE positions.

    rows [row_start, row_end)          of the flat batch
    cache rows [cache_start, + num_keys)   the sequence's keys up to the end of that block
    first_position                     of the first row; num_keys - TILE <= first_position < num_keys
    """

    row_start: int
    row_end: int
    cache_start: int
    num_keys: int
    first_position: int


@dataclass(frozen=True)
class Batch:
    """One pass over N rows.

    token_ids, positions, cache_rows   [N]  cache_rows: slot * capacity + position
    choosing_rows                      rows whose logits are needed, in the order of the segments
    """

    token_ids: list[int]
    positions: list[int]
    cache_rows: list[int]
    tiles: list[Tile]
    choosing_rows: list[int]


def make_batch(segments: Sequence[Segment], capacity: int) -> Batch:
    """Lay the segments out one after another. `capacity` is the number of cache rows of a slot, a multiple of TILE."""
    batch = Batch([], [], [], [], [])
    for segment in segments:
        row, end = len(batch.token_ids), segment.start + len(segment.token_ids)
        cache_start = segment.sequence.slot * capacity
        batch.token_ids.extend(segment.token_ids)
        batch.positions.extend(range(segment.start, end))
        batch.cache_rows.extend(range(cache_start + segment.start, cache_start + end))
        batch.tiles.extend(_tiles(row, segment.start, end, cache_start))
        last = len(batch.token_ids)
        batch.choosing_rows.extend(range(last - segment.num_choosing, last))
    return batch


def _tiles(row: int, start: int, end: int, cache_start: int) -> list[Tile]:
    """Cut the positions [start, end) at multiples of TILE; `row` is the flat row of `start`."""
    cuts = [start, *range((start // TILE + 1) * TILE, end, TILE), end]
    return [
        Tile(row + first - start, row + last - start, cache_start, (first // TILE + 1) * TILE, first)
        for first, last in pairwise(cuts)
    ]
