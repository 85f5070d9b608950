"""PrefixIndex: which block holds which tokens after which others. Ints only; knows no reference counts.

A chain of keys (block before, its tokens): equal keys mean equal tokens at equal positions from the start of the
sequence on, because every content has a serial number of its own that is never used again. Dictionaries compare keys,
not only their hashes, so nothing is ever taken for something else.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trtkit.reference.kv_cache.prefix import common_prefix

Tokens = tuple[int, ...]
ROOT = 0


class Content(NamedTuple):
    """What a block holds: token_ids behind the content with the serial number `parent`."""

    serial: int
    parent: int
    token_ids: Tokens


class Match(NamedTuple):
    """The known beginning of a prompt: whole blocks, then the first num_partial tokens of one more.

    serial: of the last whole block, ROOT when there is none.
    """

    blocks: list[int]
    serial: int
    partial: int | None
    num_partial: int


NO_MATCH = Match([], ROOT, None, 0)


class PrefixIndex:
    """The contents of blocks by what comes before them.

    One index serves one model with one cache format: what else a content depends on is the same for all.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._contents: dict[int, Content] = {}
        self._whole: dict[tuple[int, Tokens], int] = {}
        self._children: dict[int, set[int]] = {}
        self._last_serial = ROOT

    def find(self, token_ids: Sequence[int], limit: int, *, partially: bool) -> Match:
        """The longest known beginning of token_ids[:limit]."""
        blocks: list[int] = []
        serial, start, size = ROOT, 0, self._block_size
        while start + size <= limit:
            block = self._whole.get((serial, tuple(token_ids[start : start + size])))
            if block is None:
                break
            blocks.append(block)
            serial = self._contents[block].serial
            start += size
        partial, num_partial = self._best_child(serial, token_ids[start:limit]) if partially else (None, 0)
        return Match(blocks, serial, partial, num_partial)

    def put(self, block: int, parent: int, token_ids: Tokens) -> int:
        """Note what a block holds now; the serial number of this content, which another block may hold already."""
        known = self._contents.get(block)
        if known is not None and (known.parent, known.token_ids) == (parent, token_ids):
            return known.serial
        is_whole = len(token_ids) == self._block_size
        twin = self._whole.get((parent, token_ids)) if is_whole else None
        self.drop(block)
        if twin is not None and twin != block:
            return self._contents[twin].serial
        self._last_serial += 1
        self._contents[block] = Content(self._last_serial, parent, token_ids)
        self._children.setdefault(parent, set()).add(block)
        if is_whole:
            self._whole[parent, token_ids] = block
        return self._last_serial

    def drop(self, block: int) -> None:
        """Forget what a block holds. What was behind it can no longer be found, and is overwritten in its turn."""
        content = self._contents.pop(block, None)
        if content is None:
            return
        self._whole.pop((content.parent, content.token_ids), None)
        children = self._children[content.parent]
        children.discard(block)
        if not children:
            del self._children[content.parent]

    def check(self) -> None:
        """Raise AssertionError when the tables contradict each other."""
        for (parent, token_ids), block in self._whole.items():
            content = self._contents[block]
            assert (content.parent, content.token_ids) == (parent, token_ids), f"block {block} is filed wrongly"
        for parent, blocks in self._children.items():
            assert all(self._contents[block].parent == parent for block in blocks), "a block has a wrong parent"
        assert sum(map(len, self._children.values())) == len(self._contents), "a block has no parent"

    def holds(self, block: int) -> Tokens:
        """The tokens of a block, none when it is not known."""
        content = self._contents.get(block)
        return content.token_ids if content else ()

    def leads_on(self, block: int) -> bool:
        """Something is known behind the content of this block."""
        return block in self._contents and self._contents[block].serial in self._children

    def _best_child(self, parent: int, token_ids: Sequence[int]) -> tuple[int | None, int]:
        """(block behind `parent` with the longest common beginning, its length)."""
        best, length = None, 0
        for block in self._children.get(parent, ()) if token_ids else ():
            held = self._contents[block].token_ids
            common = common_prefix(held, token_ids, min(len(held), len(token_ids)))
            if common > length:
                best, length = block, common
        return best, length
