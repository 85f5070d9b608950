"""Segments of many sequences become the flat inputs of one pass. Ints and lists only; knows blocks, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.reference.scheduler.scheduler import Segment


@dataclass(frozen=True)
class Span:
    """Neighbouring rows of one sequence.

    rows [row_start, row_start + end - start)   of the flat batch
    cache slots [start, end)                    of the sequence; its slot s is row blocks[s // B] * B + s % B
    the last num_drafts of them                 may be dropped again
    """

    row_start: int
    start: int
    end: int
    blocks: Sequence[int]
    num_drafts: int = 0


@dataclass(frozen=True)
class Batch:
    """One pass over N rows.

    token_ids, positions, cache_rows   [N]
    choosing_rows                      rows whose logits are needed, in the order of the segments
    """

    token_ids: list[int]
    positions: list[int]
    cache_rows: list[int]
    spans: list[Span]
    choosing_rows: list[int]


def make_batch(segments: Sequence[Segment], block_size: int) -> Batch:
    """Lay the segments out one after another."""
    batch = Batch([], [], [], [], [])
    for segment in segments:
        row, start, blocks = len(batch.token_ids), segment.start, segment.sequence.blocks.blocks
        end = start + len(segment.token_ids)
        batch.token_ids.extend(segment.token_ids)
        batch.positions.extend(range(start, end))
        batch.cache_rows.extend(
            blocks[slot // block_size] * block_size + slot % block_size for slot in range(start, end)
        )
        batch.spans.append(Span(row, start, end, blocks, max(0, segment.num_choosing - 1)))
        last = len(batch.token_ids)
        batch.choosing_rows.extend(range(last - segment.num_logits, last))
    return batch
