"""Where a pass's rows are cut for attention, and which keys each piece reads. Ints only; knows no tensors.

A row always reads the same number of keys, in the same order, whatever is computed with it: from a multiple of the
tile size to a multiple of the tile size, both given by its own position. The order of addition in the kernels depends
on that number, so equal numbers make equal bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.block_pool import NO_BLOCK


@dataclass(frozen=True)
class Tile:
    """Rows of one sequence that read the same keys.

    rows [row_start, row_end)     of the flat batch
    keys [first_key, last_key)    of the sequence; the rows' own slots lie in the last tile of them
    first_slot                    of the first row
    is_apart                      the sinks are not among these keys
    """

    row_start: int
    row_end: int
    first_slot: int
    first_key: int
    last_key: int
    is_apart: bool


@dataclass(frozen=True)
class Visible:
    """What a layer's rows see: the last window_tokens (None: all), and the first sink_tokens beside them."""

    window_tokens: int | None = None
    sink_tokens: int = 0


def tile_size(block_size: int) -> int:
    """Keys per tile. A tile that lies inside a block can be read where it is."""
    return 64 if block_size >= 64 else 32


def cut(span: Span, visible: Visible, size: int) -> Iterator[Tile]:
    """The tiles of one span, in order."""
    window = visible.window_tokens
    cuts = {span.start, span.end, *range((span.start // size + 1) * size, span.end, size)}
    apart = span.end
    if window is not None:
        first = (span.start - window + 1) // size * size + window - 1
        cuts.update(at for at in range(first, span.end, size) if at > max(span.start, window - 1))
    if window is not None and visible.sink_tokens:
        apart = visible.sink_tokens + window
        cuts.update({apart} if span.start < apart < span.end else ())
    for start, end in pairwise(sorted(cuts)):
        is_apart = bool(visible.sink_tokens) and start >= apart
        reach = start if window is None or (visible.sink_tokens and not is_apart) else window - 1
        yield Tile(
            row_start=span.row_start + start - span.start,
            row_end=span.row_start + end - span.start,
            first_slot=start,
            first_key=max(0, (start - reach) // size * size),
            last_key=(start // size + 1) * size,
            is_apart=is_apart,
        )


def key_rows(span: Span, first: int, last: int, block_size: int) -> range | list[int]:
    """The cache rows of the sequence's slots [first, last): a range when its blocks are neighbours.

    Slots without a block of their own are masked; some row of the sequence stands in for them.
    """
    start, end = first // block_size, -(-last // block_size)
    blocks = list(span.blocks[start:end])
    if blocks[0] != NO_BLOCK and blocks == list(range(blocks[0], blocks[0] + end - start)):
        row = blocks[0] * block_size + first % block_size
        return range(row, row + last - first)
    stand_in = span.blocks[span.start // block_size]
    filled = [stand_in if block == NO_BLOCK else block for block in blocks] + [stand_in] * (end - start - len(blocks))
    rows = [block * block_size + offset for block in filled for offset in range(block_size)]
    return rows[first % block_size : first % block_size + last - first]
