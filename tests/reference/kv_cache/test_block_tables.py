"""Sequences and their blocks: admission, growth, reuse by exact identity, copies, windows."""

import random
from collections.abc import Callable

import pytest
from trtkit.reference.kv_cache.block_pool import NO_BLOCK, BlockPool
from trtkit.reference.kv_cache.block_tables import BlockTable, BlockTables, RowClear, RowCopy, RowSettle
from trtkit.reference.kv_cache.options import ReuseRule
from trtkit.reference.kv_cache.retention import KEEP_ALL, Retention

SIZE = 4


def make_tables(num_blocks: int = 8, reuse: ReuseRule = "tokens", retention: Retention = KEEP_ALL) -> BlockTables:
    return BlockTables(BlockPool(num_blocks), SIZE, reuse, retention, num_new_tokens=SIZE)


def admit(tables: BlockTables, tokens: list[int], max_tokens: int = 0) -> BlockTable:
    table = tables.admit(tokens, max_tokens=max(max_tokens, len(tokens)))
    assert table is not None
    return table


def answered(tables: BlockTables, tokens: list[int]) -> BlockTable:
    """A finished sequence that had computed all of `tokens`."""
    table = admit(tables, tokens)
    tables.commit(table, tokens, len(tokens))
    tables.release(table, tokens, len(tokens))
    return table


def test_a_prompt_gets_its_blocks_at_once_and_an_answer_as_it_grows() -> None:
    tables = make_tables()
    table = admit(tables, [1, 2, 3, 4, 5], max_tokens=12)
    assert table.blocks == [0, 1]
    assert tables.grow(table, 5, 8)
    assert table.blocks == [0, 1]
    assert tables.grow(table, 8, 9)
    assert table.blocks == [0, 1, 2]
    tables.check([table])


def test_other_sequences_leave_room_for_an_answer_to_grow_in_place() -> None:
    tables = make_tables()
    first, second = admit(tables, [1], max_tokens=12), admit(tables, [2], max_tokens=12)
    assert (first.blocks, second.blocks) == ([0], [3])


def test_nobody_is_admitted_into_the_blocks_that_should_stay_free() -> None:
    tables = make_tables(num_blocks=2)
    assert tables.admit([1] * 8, max_tokens=8, spare=1) is None
    assert tables.admit([1] * 4, max_tokens=4, spare=1) is not None


def test_growth_without_blocks_changes_nothing() -> None:
    tables = make_tables(num_blocks=2)
    table = admit(tables, [1] * 5)
    assert not tables.grow(table, 5, 9)
    assert table.blocks == [0, 1]
    tables.check([table])


def test_fresh_rows_are_cleared_before_they_are_used() -> None:
    tables = make_tables()
    admit(tables, [1, 2, 3, 4, 5])
    assert tables.take_work() == [RowClear(0, 4), RowClear(4, 8)]
    assert tables.take_work() == []


def test_whole_blocks_are_shared_and_the_rest_is_copied() -> None:
    tables = make_tables()
    owner = admit(tables, [1, 2, 3, 4, 5, 6, 7], max_tokens=8)
    tables.commit(owner, [1, 2, 3, 4, 5, 6, 7], 7)
    tables.take_work()
    other = admit(tables, [1, 2, 3, 4, 5, 6, 9], max_tokens=8)
    assert other.num_reused_tokens == 6
    assert other.blocks[0] == owner.blocks[0] and other.blocks[1] != owner.blocks[1]
    source, target = owner.blocks[1] * SIZE, other.blocks[1] * SIZE
    assert tables.take_work() == [RowCopy(source, target, 2), RowClear(target + 2, target + 4)]
    tables.check([owner, other])


def test_the_last_prompt_token_is_always_left_to_compute() -> None:
    tables = make_tables()
    answered(tables, [1, 2, 3, 4, 5, 6, 7, 8])
    assert admit(tables, [1, 2, 3, 4, 5, 6, 7, 8]).num_reused_tokens == 7
    tables = make_tables(reuse="full_blocks")
    answered(tables, [1, 2, 3, 4, 5, 6, 7, 8])
    assert admit(tables, [1, 2, 3, 4, 5, 6, 7, 8]).num_reused_tokens == 4


def test_a_continued_conversation_goes_on_in_its_own_blocks() -> None:
    tables = make_tables()
    first = answered(tables, [1, 2, 3, 4, 5, 6])
    tables.take_work()
    again = admit(tables, [1, 2, 3, 4, 5, 6, 7])
    assert (again.blocks, again.num_reused_tokens) == (first.blocks, 6)
    assert tables.take_work() == [RowClear(again.blocks[1] * SIZE + 2, again.blocks[1] * SIZE + 4)]


def test_a_short_prefix_of_a_long_conversation_leaves_the_conversation_alone() -> None:
    tables = make_tables()
    conversation = [1, 2, *range(50, 60)]
    answered(tables, conversation)
    answered(tables, [1, 2, 99])
    assert admit(tables, [*conversation, 5]).num_reused_tokens == len(conversation)


def test_whole_blocks_only_are_reused_and_only_of_finished_sequences() -> None:
    tables = make_tables(reuse="full_blocks")
    running = admit(tables, [1, 2, 3, 4, 5, 6])
    tables.commit(running, [1, 2, 3, 4, 5, 6], 6)
    assert admit(tables, [1, 2, 3, 4, 5, 6]).num_reused_tokens == 0
    tables.release(running, [1, 2, 3, 4, 5, 6], 6)
    assert admit(tables, [1, 2, 3, 4, 5, 6]).num_reused_tokens == 4


def test_what_a_cancelled_sequence_computed_is_found_to_the_token_but_not_as_finished_blocks() -> None:
    for reuse, expected in (("tokens", 5), ("full_blocks", 0), ("off", 0)):
        tables = make_tables(reuse=reuse)  # type: ignore[arg-type]
        table = admit(tables, [1, 2, 3, 4, 5, 6])
        tables.commit(table, [1, 2, 3, 4, 5, 6], 6)
        tables.release(table)
        assert admit(tables, [1, 2, 3, 4, 5, 6]).num_reused_tokens == expected


def test_without_reuse_nothing_is_found() -> None:
    tables = make_tables(reuse="off")
    answered(tables, [1, 2, 3, 4, 5])
    assert admit(tables, [1, 2, 3, 4, 5]).num_reused_tokens == 0


def test_a_request_may_ask_for_a_whole_computation() -> None:
    tables = make_tables()
    answered(tables, [1, 2, 3, 4, 5])
    table = tables.admit([1, 2, 3, 4, 5], max_tokens=5, reuses=False)
    assert table is not None and table.num_reused_tokens == 0


def test_rewound_tokens_are_not_reused() -> None:
    tables = make_tables()
    table = admit(tables, [1, 2, 3], max_tokens=8)
    tables.commit(table, [1, 2, 3, 9], 3)
    tables.release(table)
    assert admit(tables, [1, 2, 3, 4, 5, 6]).num_reused_tokens == 3


def test_what_failed_is_not_reused_but_what_it_had_reused_still_is() -> None:
    tables = make_tables()
    answered(tables, [1, 2, 3, 4])
    failed = admit(tables, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    tables.commit(failed, [1, 2, 3, 4, 5, 6, 7, 8, 9], 9)
    tables.discard(failed)
    assert admit(tables, [1, 2, 3, 4, 5, 6, 7, 8, 9]).num_reused_tokens == 4


def test_reusing_a_free_prefix_needs_as_many_free_blocks_as_computing_it() -> None:
    tables = make_tables(num_blocks=2)
    answered(tables, [1, 2, 3, 4, 5])
    assert tables.admit([1, 2, 3, 4, 5], max_tokens=5, spare=1) is None
    assert tables.admit([1, 2, 3, 4, 5], max_tokens=5) is not None


def test_a_window_lets_go_of_blocks_and_keeps_the_sinks() -> None:
    tables = make_tables(num_blocks=16, retention=Retention(window_tokens=6, sink_tokens=2))
    tokens = list(range(40))
    table = admit(tables, tokens[:4], max_tokens=40)
    for end in range(5, 41):
        tables.commit(table, tokens, end - 1)
        assert tables.grow(table, end - 1, end)
        tables.check([table])
        assert sum(block != NO_BLOCK for block in table.blocks) <= 4
    assert table.blocks[0] != NO_BLOCK
    assert table.blocks[1:8] == [NO_BLOCK] * 7


def test_a_windowed_prompt_reuses_a_prefix_whose_middle_is_no_longer_read() -> None:
    tables = make_tables(num_blocks=16, retention=Retention(window_tokens=4, sink_tokens=1))
    tokens = list(range(24))
    table = admit(tables, tokens, max_tokens=24)
    for start in range(0, 24, SIZE):
        assert tables.grow(table, start, start + SIZE)
        tables.commit(table, tokens, start + SIZE)
    tables.release(table)
    again = admit(tables, [*tokens, 99])
    assert again.num_reused_tokens == 24
    assert again.blocks[1:5] == [NO_BLOCK] * 4 and again.blocks[0] != NO_BLOCK and again.blocks[5] != NO_BLOCK
    tables.check([again])


class Crowd:
    """Sequences that come, grow, rewind and go at random: (table, tokens, tokens computed)."""

    def __init__(self, tables: BlockTables) -> None:
        self.chance = random.Random(0)
        self.tables = tables
        self.running: list[tuple[BlockTable, list[int], int]] = []

    def random_tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(3) for _ in range(count)]

    def admit(self) -> None:
        tokens = self.random_tokens(self.chance.randint(1, 14))
        table = self.tables.admit(tokens, max_tokens=30, spare=self.chance.randint(0, 3))
        if table is not None:
            assert table.num_reused_tokens < len(tokens)
            self.running.append((table, tokens, table.num_reused_tokens))

    def step(self, table: BlockTable, tokens: list[int], computed: int) -> None:
        end = min(computed + self.chance.randint(1, SIZE), 28)
        tokens = tokens + self.random_tokens(end - len(tokens))
        if computed < end and self.tables.grow(table, computed, end):
            computed = self.chance.randint(computed + 1, end)  # the others were drafts
            self.tables.commit(table, tokens, computed)
        self.running.append((table, tokens, computed))

    def go(self, operation: str) -> None:
        if operation == "admit" or not self.running:
            self.admit()
            return
        table, tokens, computed = self.running.pop(self.chance.randrange(len(self.running)))
        actions: dict[str, Callable[[], None]] = {
            "step": lambda: self.step(table, tokens, computed),
            "finish": lambda: self.tables.release(table, tokens, computed),
            "cancel": lambda: self.tables.release(table),
            "fail": lambda: self.tables.discard(table),
        }
        actions[operation]()


@pytest.mark.parametrize("reuse", ["tokens", "full_blocks", "off"])
@pytest.mark.parametrize("retention", [KEEP_ALL, Retention(6, 2)], ids=["all", "window"])
def test_after_ten_thousand_random_operations_no_block_is_lost(reuse: ReuseRule, retention: Retention) -> None:
    tables = make_tables(24, reuse, retention)
    crowd = Crowd(tables)
    for _ in range(10_000):
        crowd.go(crowd.chance.choice(("admit", "step", "step", "finish", "cancel", "fail")))
        tables.take_work()
        tables.check([table for table, _, _ in crowd.running])
    for table, _, _ in crowd.running:
        tables.release(table)
    tables.check([])
    assert tables.pool.num_free == 24


def test_heavy_hitters_keep_the_first_slots_and_settle_before_blocks_are_taken_again() -> None:
    tables = make_tables(num_blocks=5, reuse="off", retention=Retention(window_tokens=4, sink_tokens=1, heavy_tokens=6))
    table = admit(tables, list(range(15)))
    tables.take_work()
    tables.commit(table, list(range(15)), 15)
    assert table.blocks == [0, 1, NO_BLOCK, 3], "slots 0 to 6 are fixed, token 15 reads 12 to 15"
    other = admit(tables, [1] * 8)
    assert 2 in other.blocks
    assert tables.take_work()[0] == RowSettle(first_row=0, num_computed=15)
    tables.check([table, other])
