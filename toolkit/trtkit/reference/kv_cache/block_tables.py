"""BlockTables: sequences to blocks. Admission, growth, reuse, copies, windows; ints only, imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trtkit.reference.kv_cache.block_pool import NO_BLOCK, BlockPool
from trtkit.reference.kv_cache.options import ReuseRule
from trtkit.reference.kv_cache.prefix_index import NO_MATCH, ROOT, Match, PrefixIndex
from trtkit.reference.kv_cache.retention import KEEP_ALL, Retention


class RowCopy(NamedTuple):
    """Copy num_rows cache rows from `source` to `target`, in every layer."""

    source: int
    target: int
    num_rows: int


class RowClear(NamedTuple):
    """Zero the cache rows [start, end): what a block held before could be NaN, and a masked NaN is still one."""

    start: int
    end: int


class RowSettle(NamedTuple):
    """The sequence whose first row is first_row keeps num_computed tokens of its last pass: so do its heavy hitters."""

    first_row: int
    num_computed: int


RowWork = RowCopy | RowClear | RowSettle


@dataclass
class BlockTable:
    """The blocks of one sequence, oldest tokens first; NO_BLOCK where its tokens are no longer read.

    The blocks before first_live, except those of fixed slots, are NO_BLOCK. num_filed whole blocks are in the index,
    the last of them as `serial`.
    num_allocated counts blocks taken, num_shared those found whole.
    """

    blocks: list[int]
    num_reused_tokens: int
    num_shared: int
    num_allocated: int
    promised: range
    num_filed: int = 0
    serial: int = ROOT
    first_live: int = 0


@dataclass
class BlockTables:
    """A pool, what its blocks hold, and the rules by which sequences get, share and give back blocks.

    num_new_tokens is the most that one pass computes of a sequence. `work` collects what has to happen to the tensors,
    in this order, before the next pass.
    """

    pool: BlockPool
    block_size: int
    reuse: ReuseRule = "tokens"
    retention: Retention = KEEP_ALL
    num_new_tokens: int = 1
    work: list[RowWork] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index = PrefixIndex(self.block_size)

    def max_blocks(self, num_tokens: int) -> int:
        """Most blocks that a sequence of this length ever holds."""
        return self.retention.max_blocks(num_tokens, self.num_new_tokens, self.block_size)

    def admit(
        self, token_ids: Sequence[int], *, max_tokens: int, spare: int = 0, reuses: bool = True
    ) -> BlockTable | None:
        """Blocks for a prompt that may grow to max_tokens, or None when fewer than `spare` would be left free.

        The prompt starts from the longest known beginning; at least its last token is left to compute, since that
        token's logits choose the first answer token. A block that is known in part is copied, or taken over when it is
        free and mostly the prompt's.
        """
        match = self._match(token_ids) if reuses else NO_MATCH
        num_matched = len(match.blocks)
        num_reused = num_matched * self.block_size + match.num_partial
        blocks = [block if self._is_read(index, num_reused) else NO_BLOCK for index, block in enumerate(match.blocks)]
        live = [block for block in blocks if block != NO_BLOCK]
        num_whole = -(-len(token_ids) // self.block_size)
        count = min(num_whole - num_matched, max(1, self.max_blocks(len(token_ids)) - len(live)))
        num_revived = sum(self.pool.ref_count(block) == 0 for block in live)
        if count + num_revived + spare > self.pool.num_free:
            return None
        for block in live:
            self.pool.share(block)
        table = BlockTable(
            blocks=blocks,
            num_reused_tokens=num_reused,
            num_shared=num_matched,
            num_allocated=0,
            promised=range(0),
            num_filed=num_matched,
            serial=match.serial,
            first_live=-(-self.retention.num_fixed // self.block_size),
        )
        self._begin(table, match, count, max(count, self.max_blocks(max_tokens) - len(live)))
        return table

    def grow(self, table: BlockTable, start: int, end: int) -> bool:
        """Make the rows [start, end) of a sequence writable; False, and nothing changes, when blocks are lacking.

        Only whole blocks of committed tokens have several readers, so no row behind those is anybody else's.
        """
        own = table.blocks[start // self.block_size :]
        assert all(self.pool.ref_count(block) == 1 for block in own), "a block that others read is about to be written"
        count = max(0, -(-end // self.block_size) - len(table.blocks))
        if count > self.pool.num_free:
            return False
        for block in self._take(table, count, at=table.blocks[-1] + 1 if table.blocks else NO_BLOCK):
            table.blocks.append(block)
            self._copy(None, block, 0)
        return True

    def commit(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Note that token_ids[:num_computed] are in the cache for good: file them, let go of what is no longer read."""
        if self.reuse == "tokens":
            self._file(table, token_ids, num_computed)
            tail = tuple(token_ids[table.num_filed * self.block_size : num_computed])
            if tail:
                self._index.put(table.blocks[table.num_filed], table.serial, tail)
        if self.retention.heavy_tokens:
            self.work.append(RowSettle(table.blocks[0] * self.block_size, num_computed))
        self._trim(table, num_computed)

    def release(self, table: BlockTable, token_ids: Sequence[int] = (), num_computed: int = 0) -> None:
        """Give all blocks back. Of a completed sequence the whole blocks of token_ids[:num_computed] stay findable."""
        if self.reuse == "full_blocks":
            self._file(table, token_ids, num_computed)
        self.pool.withdraw(table.promised)
        self._give_back(table.blocks)

    def discard(self, table: BlockTable) -> None:
        """Give all blocks back and forget what this sequence computed."""
        for block in table.blocks[table.num_reused_tokens // self.block_size :]:
            self._index.drop(block)
        self.pool.withdraw(table.promised)
        self._give_back(table.blocks)

    def clear(self, table: BlockTable, start: int, end: int) -> list[RowWork]:
        """What zeroes the slots [start, end) of a sequence."""
        rows = [
            table.blocks[slot // self.block_size] * self.block_size + slot % self.block_size
            for slot in range(start, end)
        ]
        return [RowClear(row, row + 1) for row in rows]

    def take_work(self) -> list[RowWork]:
        """What the tensors need before the next pass; the caller does it."""
        work, self.work = self.work, []
        return work

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Raise AssertionError when pool, index and the tables in use contradict each other."""
        tables = list(tables)
        self.pool.check([table.blocks for table in tables])
        self._index.check()
        for table in tables:
            if self.retention.is_bounded:
                held = sum(block != NO_BLOCK for block in table.blocks)
                assert held <= self.max_blocks(len(table.blocks) * self.block_size), "a bounded sequence holds too much"

    def _is_read(self, index: int, num_computed: int) -> bool:
        """The index-th block of a sequence is read when the token at num_computed or a later one is computed."""
        is_fixed = index * self.block_size < self.retention.num_fixed
        return is_fixed or (index + 1) * self.block_size > self.retention.first_kept(num_computed)

    def _match(self, token_ids: Sequence[int]) -> Match:
        if self.reuse == "off":
            return NO_MATCH
        return self._index.find(token_ids, len(token_ids) - 1, partially=self.reuse == "tokens")

    def _begin(self, table: BlockTable, match: Match, count: int, room: int) -> None:
        """Take the blocks of a prompt behind those it shares."""
        expendable = self._expendable(match)
        at = match.blocks[-1] + 1 if match.blocks else next(iter(expendable), NO_BLOCK)
        blocks = self._take(table, count, at=at, room=room, expendable=expendable)
        for index, block in enumerate(blocks):
            table.blocks.append(block)
            self._copy(match.partial, block, 0 if index else match.num_partial)
        table.promised = self.pool.promise(range(blocks[-1] + 1, blocks[-1] + 1 + room - count))

    def _expendable(self, match: Match) -> frozenset[int]:
        """The block that is known in part, when it is mostly the prompt's and nothing is known behind it."""
        block = match.partial
        if block is None or self._index.leads_on(block) or 2 * match.num_partial < len(self._index.holds(block)):
            return frozenset()
        return frozenset([block])

    def _take(
        self, table: BlockTable, count: int, *, at: int, room: int = 0, expendable: frozenset[int] = frozenset()
    ) -> list[int]:
        blocks = self.pool.allocate(count, at=at, room=room, expendable=expendable)
        assert blocks is not None, "the caller has counted the free blocks"
        for block in blocks:
            self._index.drop(block)
        table.num_allocated += len(blocks)
        return blocks

    def _copy(self, source: int | None, target: int, num_rows: int) -> None:
        """Fill a block that was just taken: its first rows from another, the rest with zeros."""
        start = target * self.block_size
        if num_rows and source is not None and source != target:
            self.work.append(RowCopy(source * self.block_size, start, num_rows))
        self.work.append(RowClear(start + num_rows, start + self.block_size))

    def _file(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Put the whole blocks that are not filed yet into the index."""
        size = self.block_size
        while (table.num_filed + 1) * size <= num_computed and table.blocks[table.num_filed] != NO_BLOCK:
            tokens = tuple(token_ids[table.num_filed * size : (table.num_filed + 1) * size])
            table.serial = self._index.put(table.blocks[table.num_filed], table.serial, tokens)
            table.num_filed += 1

    def _trim(self, table: BlockTable, num_computed: int) -> None:
        """Release the blocks between fixed slots and window."""
        while table.first_live < len(table.blocks) and not self._is_read(table.first_live, num_computed):
            block, table.blocks[table.first_live] = table.blocks[table.first_live], NO_BLOCK
            self._give_back([block])
            table.first_live += 1

    def _give_back(self, blocks: list[int]) -> None:
        """Release blocks; those with findable content are taken again later than the others."""
        blocks = [block for block in blocks if block != NO_BLOCK]
        findable = [block for block in blocks if self._index.holds(block)]
        self.pool.release([block for block in blocks if not self._index.holds(block)], is_worth_keeping=False)
        self.pool.release(findable)
