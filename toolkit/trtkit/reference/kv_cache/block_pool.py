"""BlockPool: which blocks are in use, how often, and which free one is taken next. Ints only; knows no tokens."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

NO_BLOCK = -1


class BlockPool:
    """Blocks 0 .. num_blocks - 1 with reference counts.

    Free blocks keep their content until they are taken. The least recently released go first; among those, blocks that
    lie one after another are preferred, because a sequence on neighbouring blocks is read without a copy. `room` of a
    sequence is therefore promised to it, which keeps others away as long as there is space elsewhere.
    """

    def __init__(self, num_blocks: int) -> None:
        self._ref_counts = [0] * num_blocks
        self._released_at = [0] * num_blocks  # 0: nothing worth keeping
        self._promises = [0] * num_blocks
        self._clock = 0
        self.num_free = num_blocks

    @property
    def num_blocks(self) -> int:
        """All blocks, free or not."""
        return len(self._ref_counts)

    def ref_count(self, block: int) -> int:
        """How many sequences read this block."""
        return self._ref_counts[block]

    def allocate(
        self, count: int, *, at: int = NO_BLOCK, room: int = 0, expendable: Collection[int] = ()
    ) -> list[int] | None:
        """Take `count` blocks, or none at all when they are not there.

        `at` is the block that would continue what the sequence has; `room` how many blocks a new sequence may come to
        need from there on, 0 for one that grows. `expendable` free blocks count as released before all others.
        """
        if count > self.num_free:
            return None
        taken: list[int] = []
        while len(taken) < count:
            is_growing = bool(taken) or not room
            block = self._next(at, max(room, count) - len(taken), expendable, is_growing=is_growing)
            self._take(block)
            taken.append(block)
            at = block + 1
        return taken

    def share(self, block: int) -> None:
        """Add a reader; a free block is in use again with the content it has."""
        if self._ref_counts[block] == 0:
            self.num_free -= 1
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int], *, is_worth_keeping: bool = True) -> None:
        """Take a reader away from each; of those that become free, the first is taken again last."""
        for block in reversed(list(blocks)):
            assert self._ref_counts[block] > 0, f"block {block} was released more often than taken"
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self.num_free += 1
                self._clock += 1
                self._released_at[block] = self._clock if is_worth_keeping else 0

    def promise(self, blocks: range) -> range:
        """Keep others away from these blocks while there is space elsewhere; the part of them that exists."""
        kept = range(blocks.start, min(blocks.stop, self.num_blocks))
        for block in kept:
            self._promises[block] += 1
        return kept

    def withdraw(self, blocks: range) -> None:
        """End a promise."""
        for block in blocks:
            self._promises[block] -= 1

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError when the counts are not those of the tables that are in use."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                if block != NO_BLOCK:
                    counts[block] += 1
        assert counts == self._ref_counts, "reference counts and tables differ: a block leaked or was freed in use"
        assert self.num_free == counts.count(0), "the number of free blocks is wrong"
        assert min(self._promises, default=0) >= 0, "a promise was withdrawn twice"

    def _take(self, block: int) -> None:
        self._ref_counts[block] = 1
        self._released_at[block] = 0
        self.num_free -= 1

    def _next(self, at: int, wanted: int, expendable: Collection[int], *, is_growing: bool) -> int:
        """`at` if it is free and, unless the sequence grows, no younger than the best run elsewhere."""
        is_free = 0 <= at < self.num_blocks and not self._ref_counts[at]
        if is_free and is_growing:
            return at
        ages = [self._age(block, expendable) for block in range(self.num_blocks)]
        start, oldest = _oldest_run(ages, wanted)
        here = ages[at : at + wanted] if is_free else [None]
        return at if all(age is not None and age <= oldest for age in here) else start

    def _age(self, block: int, expendable: Collection[int]) -> int | None:
        """When the block was released, later than all when it is promised; None when it is in use."""
        if self._ref_counts[block]:
            return None
        promised = self._promises[block] * (self._clock + 1)
        return promised + (0 if block in expendable else self._released_at[block])


def _oldest_run(ages: Sequence[int | None], length: int) -> tuple[int, int]:
    """(first block, youngest age) of the oldest run of free blocks: `length` of them, or as many as stand together."""
    length = min(length, len(ages))
    while True:
        found = min(_runs(ages, length), default=None)
        if found is not None:
            return found[1], found[0]
        length = max(1, length // 2)


def _runs(ages: Sequence[int | None], length: int) -> Iterable[tuple[int, int]]:
    """(youngest age, first block) of every run of `length` free blocks: a sliding maximum."""
    window: deque[tuple[int, int]] = deque()  # falling ages
    start = 0
    for block, age in enumerate(ages):
        if age is None:
            window.clear()
            start = block + 1
            continue
        while window and window[-1][1] <= age:
            window.pop()
        window.append((block, age))
        if window[0][0] <= block - length:
            window.popleft()
        if block - start + 1 >= length:
            yield window[0][1], block - length + 1
