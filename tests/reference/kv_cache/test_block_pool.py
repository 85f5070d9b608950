"""Blocks: reference counts, which free one is taken next, and promises."""

import pytest
from trtkit.reference.kv_cache.block_pool import BlockPool


def taken(pool: BlockPool, count: int, **how: int) -> list[int]:
    blocks = pool.allocate(count, **how)
    assert blocks is not None
    return blocks


def test_all_or_none_are_taken() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert sorted(taken(pool, 3)) == [0, 1, 2]
    assert pool.allocate(1) is None


def test_a_sequence_gets_neighbours() -> None:
    pool = BlockPool(8)
    assert taken(pool, 3, room=4) == [0, 1, 2]
    assert taken(pool, 1, at=3) == [3]


def test_a_run_that_is_long_enough_is_preferred_to_a_shorter_one_before_it() -> None:
    pool = BlockPool(8)
    taken(pool, 8)
    pool.release([1, 2, 4, 5, 6])
    assert taken(pool, 3, room=3) == [4, 5, 6]


def test_what_stands_together_is_taken_when_no_run_is_long_enough() -> None:
    pool = BlockPool(8)
    taken(pool, 8)
    pool.release([0, 2, 3, 6])
    assert taken(pool, 4, room=4)[:2] == [2, 3]


def test_the_block_released_longest_ago_is_taken_first() -> None:
    pool = BlockPool(4)
    taken(pool, 4)
    for block in (2, 0, 3, 1):
        pool.release([block])
    assert [taken(pool, 1)[0] for _ in range(4)] == [2, 0, 3, 1]


def test_of_one_sequence_the_end_is_taken_before_the_beginning() -> None:
    pool = BlockPool(4)
    blocks = taken(pool, 4)
    pool.release(blocks)
    assert [taken(pool, 1)[0] for _ in range(4)] == blocks[::-1]


def test_blocks_without_worth_go_before_those_with() -> None:
    pool = BlockPool(2)
    taken(pool, 2)
    pool.release([0])
    pool.release([1], is_worth_keeping=False)
    assert taken(pool, 1) == [1]


def test_an_expendable_block_counts_as_the_oldest() -> None:
    pool = BlockPool(2)
    taken(pool, 2)
    pool.release([0])
    pool.release([1])
    assert pool.allocate(1, room=1, expendable=frozenset([1])) == [1]


def test_a_new_sequence_does_not_take_the_neighbour_when_older_blocks_are_free() -> None:
    pool = BlockPool(3)
    taken(pool, 3)
    pool.release([2])
    pool.release([1])
    assert taken(pool, 1, at=1, room=1) == [2]


def test_promised_blocks_are_avoided_as_long_as_there_are_others() -> None:
    pool = BlockPool(4)
    taken(pool, 1)
    promise = pool.promise(range(1, 3))
    assert taken(pool, 1, room=1) == [3]
    assert taken(pool, 1, room=1) == [1]
    pool.withdraw(promise)
    pool.check([[0], [3], [1]])


def test_a_promise_beyond_the_last_block_is_cut() -> None:
    assert BlockPool(4).promise(range(2, 9)) == range(2, 4)


def test_a_shared_block_is_free_when_its_last_reader_lets_go() -> None:
    pool = BlockPool(1)
    taken(pool, 1)
    pool.share(0)
    pool.release([0])
    assert pool.num_free == 0
    pool.release([0])
    assert pool.num_free == 1


def test_a_free_block_may_be_shared_again_with_its_content() -> None:
    pool = BlockPool(1)
    pool.release(taken(pool, 1))
    pool.share(0)
    assert pool.num_free == 0
    pool.check([[0]])


def test_check_notices_a_leak_and_a_block_in_use_that_is_free() -> None:
    pool = BlockPool(2)
    taken(pool, 1)
    for tables in ([], [[0, 1]]):
        with pytest.raises(AssertionError, match="leaked"):
            pool.check(tables)


def test_releasing_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="more often"):
        BlockPool(1).release([0])
