"""Flat rows of several sequences: positions, cache rows, tiles."""

import pytest
from trtkit.reference.batch import TILE, make_batch
from trtkit.reference.kv_cache.slots import Placement
from trtkit.reference.request import GenerationRequest
from trtkit.reference.scheduler.scheduler import Segment
from trtkit.reference.scheduler.sequence import Sequence

CAPACITY = 4 * TILE


def segment(slot: int, start: int, count: int, num_choosing: int = 1) -> Segment:
    sequence = Sequence(GenerationRequest("a", (1,), 1), Placement(slot, 0, None))
    return Segment(sequence, start, list(range(count)), num_choosing)


def test_segments_lie_one_after_another() -> None:
    batch = make_batch([segment(2, 10, 3), segment(0, 0, 2)], CAPACITY)
    assert batch.token_ids == [0, 1, 2, 0, 1]
    assert batch.positions == [10, 11, 12, 0, 1]
    assert batch.cache_rows == [2 * CAPACITY + 10, 2 * CAPACITY + 11, 2 * CAPACITY + 12, 0, 1]


def test_the_last_rows_of_a_segment_choose() -> None:
    batch = make_batch([segment(0, 5, 4, num_choosing=3), segment(1, 0, 4, num_choosing=0), segment(2, 9, 1)], CAPACITY)
    assert batch.choosing_rows == [1, 2, 3, 8]


@pytest.mark.parametrize(
    ("start", "count", "cuts"),
    [
        (0, 1, [(0, 1, 64)]),
        (63, 1, [(0, 1, 64)]),
        (64, 1, [(0, 1, 128)]),
        (60, 8, [(0, 4, 64), (4, 8, 128)]),
        (0, 130, [(0, 64, 64), (64, 128, 128), (128, 130, 192)]),
    ],
)
def test_rows_are_cut_where_a_tile_of_positions_ends(start: int, count: int, cuts: list[tuple[int, int, int]]) -> None:
    tiles = make_batch([segment(1, start, count)], CAPACITY).tiles
    assert [(tile.row_start, tile.row_end, tile.num_keys) for tile in tiles] == cuts
    for tile in tiles:
        assert tile.cache_start == CAPACITY
        assert tile.first_position == start + tile.row_start
        assert tile.num_keys - TILE <= tile.first_position < tile.num_keys
