"""Flat rows of several sequences: positions and cache rows by way of their block tables."""

from trtkit.reference.batch import Span, make_batch
from trtkit.reference.kv_cache.block_tables import BlockTable
from trtkit.reference.request import GenerationRequest
from trtkit.reference.scheduler.scheduler import Segment
from trtkit.reference.scheduler.sequence import Sequence


def segment(blocks: list[int], start: int, count: int, num_choosing: int = 1) -> Segment:
    sequence = Sequence(GenerationRequest("a", (1,), 1))
    sequence.start(BlockTable(blocks, 0, 0, 0, range(0)))
    return Segment(sequence, start, list(range(count)), num_choosing, num_choosing)


def test_segments_lie_one_after_another_and_their_slots_in_their_blocks() -> None:
    batch = make_batch([segment([7, 2], 3, 3), segment([5], 0, 2)], block_size=4)
    assert batch.token_ids == [0, 1, 2, 0, 1]
    assert batch.positions == [3, 4, 5, 0, 1]
    assert batch.cache_rows == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 5 * 4, 5 * 4 + 1]
    assert batch.spans == [Span(0, 3, 6, [7, 2]), Span(3, 0, 2, [5])]


def test_the_last_rows_of_a_segment_choose() -> None:
    segments = [segment([0, 1, 2], 5, 4, num_choosing=3), segment([3], 0, 4, num_choosing=0), segment([4, 5, 6], 9, 1)]
    assert make_batch(segments, block_size=4).choosing_rows == [1, 2, 3, 8]
