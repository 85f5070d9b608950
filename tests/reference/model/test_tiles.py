"""Which keys a row reads: given by its position alone, whatever is computed with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.block_pool import NO_BLOCK
from trtkit.reference.model.tiles import Tile, Visible, cut, key_rows, tile_size

SIZE = 8
SIGHTS = st.one_of(
    st.just(Visible()),
    st.builds(Visible, st.integers(1, 40)),
    st.builds(Visible, st.integers(1, 40), st.integers(1, 10)),
)


def tiles_of(start: int, end: int, visible: Visible) -> list[Tile]:
    return list(cut(Span(0, start, end, []), visible, SIZE))


@pytest.mark.parametrize(
    ("start", "end", "cuts"),
    [
        (0, 1, [(0, 1, 0, 8)]),
        (7, 9, [(0, 1, 0, 8), (1, 2, 0, 16)]),
        (3, 20, [(0, 5, 0, 8), (5, 13, 0, 16), (13, 17, 0, 24)]),
    ],
)
def test_rows_are_cut_where_a_tile_of_positions_ends(
    start: int, end: int, cuts: list[tuple[int, int, int, int]]
) -> None:
    tiles = tiles_of(start, end, Visible())
    assert [(tile.row_start, tile.row_end, tile.first_key, tile.last_key) for tile in tiles] == cuts


@given(start=st.integers(0, 100), count=st.integers(1, 60), visible=SIGHTS)
def test_a_row_reads_the_same_keys_alone_and_in_company(start: int, count: int, visible: Visible) -> None:
    def keys(tile: Tile) -> tuple[int, int, bool]:
        return tile.first_key, tile.last_key, tile.is_apart

    together = [
        keys(tile) for tile in tiles_of(start, start + count, visible) for _ in range(tile.row_end - tile.row_start)
    ]
    alone = [keys(*tiles_of(position, position + 1, visible)) for position in range(start, start + count)]
    assert together == alone


@given(position=st.integers(0, 200), visible=SIGHTS)
def test_a_row_reads_all_that_it_sees_and_no_whole_tile_more(position: int, visible: Visible) -> None:
    [tile] = tiles_of(position, position + 1, visible)
    window, sinks = visible.window_tokens, visible.sink_tokens
    first_seen = 0 if window is None else max(0, position - window + 1)
    assert tile.is_apart == bool(window is not None and sinks and first_seen > sinks)
    if window is not None and sinks and not tile.is_apart:
        first_seen = 0
    assert first_seen - SIZE < tile.first_key <= first_seen
    assert tile.last_key - SIZE <= position < tile.last_key


def test_neighbouring_blocks_are_read_where_they_are() -> None:
    assert key_rows(Span(0, 0, 20, [5, 6, 7, 1]), 8, 24, block_size=8) == range(48, 64)
    assert key_rows(Span(0, 0, 20, [5, 6, 7, 1]), 4, 12, block_size=8) == range(44, 52)


def test_scattered_blocks_are_read_by_their_rows() -> None:
    assert key_rows(Span(0, 0, 6, [3, 0]), 0, 4, block_size=2) == [6, 7, 0, 1]


def test_slots_without_a_block_are_stood_in_for_by_the_rows_own() -> None:
    assert key_rows(Span(0, 4, 5, [NO_BLOCK, 3, 1]), 0, 8, block_size=2) == [2, 3, 6, 7, 2, 3, 2, 3]
    assert key_rows(Span(0, 0, 1, [0]), 0, 4, block_size=2) == [0, 1, 0, 1]


def test_a_tile_never_reaches_over_a_block_of_its_size_or_more() -> None:
    for block_size in (32, 64, 128, 256):
        assert block_size % tile_size(block_size) == 0
