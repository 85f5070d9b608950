"""What is known: tokens at their positions behind all that came before, and nothing that merely looks alike."""

from trtkit.reference.kv_cache.prefix_index import ROOT, PrefixIndex


def whole(index: PrefixIndex, tokens: list[int], limit: int | None = None) -> list[int]:
    return index.find(tokens, len(tokens) if limit is None else limit, partially=False).blocks


def index_with_chain() -> PrefixIndex:
    """Blocks 5, 6, 7 hold 1 2 | 3 4 | 5 (the last one in part)."""
    index = PrefixIndex(2)
    serial = index.put(5, ROOT, (1, 2))
    serial = index.put(6, serial, (3, 4))
    index.put(7, serial, (5,))
    return index


def test_whole_blocks_are_found_in_order() -> None:
    assert whole(index_with_chain(), [1, 2, 3, 4, 5, 6]) == [5, 6]


def test_the_limit_cuts_the_last_block() -> None:
    assert whole(index_with_chain(), [1, 2, 3, 4], limit=3) == [5]


def test_equal_tokens_at_another_position_are_not_the_same() -> None:
    assert whole(index_with_chain(), [3, 4]) == []
    assert whole(index_with_chain(), [1, 2, 1, 2]) == [5]


def test_equal_tokens_behind_other_tokens_are_not_the_same() -> None:
    assert whole(index_with_chain(), [9, 9, 3, 4]) == []


def test_a_part_is_found_to_the_token_and_only_when_asked_for() -> None:
    index = index_with_chain()
    match = index.find([1, 2, 3, 4, 5, 9], 6, partially=True)
    assert (match.blocks, match.partial, match.num_partial) == ([5, 6], 7, 1)
    match = index.find([1, 9, 9], 3, partially=True)
    assert (match.blocks, match.partial, match.num_partial) == ([], 5, 1)
    assert index.find([1, 9, 9], 3, partially=False).partial is None


def test_the_longest_part_wins() -> None:
    index = PrefixIndex(4)
    index.put(0, ROOT, (1, 2, 9, 9))
    index.put(1, ROOT, (1, 2, 3))
    match = index.find([1, 2, 3, 4], 3, partially=True)
    assert (match.partial, match.num_partial) == (1, 3)


def test_a_second_block_with_the_same_content_gets_the_serial_of_the_first_and_is_not_filed() -> None:
    index = PrefixIndex(2)
    first = index.put(0, ROOT, (1, 2))
    assert index.put(1, ROOT, (1, 2)) == first
    assert whole(index, [1, 2]) == [0]
    index.check()


def test_what_was_overwritten_is_not_found() -> None:
    index = index_with_chain()
    index.put(6, ROOT, (8, 8))
    assert whole(index, [1, 2, 3, 4]) == [5]
    assert whole(index, [8, 8]) == [6]
    index.check()


def test_behind_a_forgotten_block_nothing_is_found_even_when_the_same_tokens_come_back() -> None:
    index = index_with_chain()
    index.drop(5)
    index.put(5, ROOT, (1, 2))
    assert whole(index, [1, 2, 3, 4]) == [5]
    index.check()


def test_a_growing_block_is_known_as_it_stands() -> None:
    index = PrefixIndex(4)
    for length in (1, 2, 3, 4):
        index.put(0, ROOT, tuple(range(length)))
        assert index.holds(0) == tuple(range(length))
    assert whole(index, [0, 1, 2, 3]) == [0]
    index.check()
