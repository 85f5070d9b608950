"""SlotPool: which sequence owns which cache slot, and what tokens a slot holds. Counts ints, imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtkit.reference.kv_cache.prefix import common_prefix


@dataclass(frozen=True)
class Placement:
    """Where a new sequence goes.

    The first num_reused tokens of its prompt are already in the cache: in `slot` itself, or in copy_from, from where
    they have to be copied before the sequence runs.
    """

    slot: int
    num_reused: int
    copy_from: int | None


@dataclass
class _Slot:
    """token_ids[:num_held] is in the cache; the list may be its owner's, growing while it runs."""

    token_ids: Sequence[int] = field(default_factory=list)
    num_held: int = 0
    is_free: bool = True
    released_at: int = 0


class SlotPool:
    """A fixed number of slots, each with room for one sequence of max_seq_len tokens.

    A finished sequence leaves its tokens behind, and the next prompt starts from the longest prefix that any slot,
    free or running, has computed (token granularity). Identity is exact: the same token ids at the same positions;
    weights and cache dtype are the same for all slots of an engine.
    """

    def __init__(self, num_slots: int, max_seq_len: int, *, reuse: bool = True) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._max_seq_len = max_seq_len
        self._reuse = reuse
        self._clock = 0

    @property
    def num_free(self) -> int:
        """Slots without an owner."""
        return sum(slot.is_free for slot in self._slots)

    def acquire(self, prompt_ids: Sequence[int]) -> Placement | None:
        """Take a slot for a prompt, or None when all are owned.

        At least one prompt token is left to compute, since its logits choose the first answer token. A free slot
        whose tokens are mostly the prompt's is taken as it is; else the longest unused slot gets a copy, so that one
        common system prompt does not destroy the longer conversation it was found in.
        """
        free = [index for index, slot in enumerate(self._slots) if slot.is_free]
        if not free:
            return None
        num_reused, source = self._longest_prefix(prompt_ids)
        oldest = min(free, key=lambda index: (self._slots[index].num_held > 0, self._slots[index].released_at))
        taken = source if self._slots[source].is_free and 2 * num_reused >= self._slots[source].num_held else oldest
        slot = self._slots[taken]
        slot.is_free, slot.token_ids, slot.num_held = False, prompt_ids, num_reused
        return Placement(taken, num_reused, copy_from=source if num_reused and source != taken else None)

    def commit(self, index: int, token_ids: Sequence[int], num_computed: int) -> None:
        """Note that token_ids[:num_computed] of the owner is in the cache; a shorter count than before rewinds."""
        slot = self._slots[index]
        slot.token_ids, slot.num_held = token_ids, num_computed

    def release(self, index: int) -> None:
        """Give a slot back; what it holds stays for reuse."""
        slot = self._slots[index]
        self._clock += 1
        slot.is_free, slot.released_at = True, self._clock
        if not self._reuse:
            slot.token_ids, slot.num_held = [], 0

    def check(self) -> None:
        """Raise AssertionError when a count is impossible; tests call it after every step."""
        for index, slot in enumerate(self._slots):
            assert 0 <= slot.num_held <= len(slot.token_ids), f"slot {index} holds more tokens than it knows"
            assert slot.num_held <= self._max_seq_len, f"slot {index} holds more than max_seq_len tokens"
            assert self._reuse or not slot.is_free or slot.num_held == 0, f"slot {index} kept tokens without reuse"

    def _longest_prefix(self, prompt_ids: Sequence[int]) -> tuple[int, int]:
        """(tokens in common, slot), preferring a free slot among equals; (0, some slot) when nothing fits."""
        if not self._reuse:
            return 0, 0
        limit = len(prompt_ids) - 1
        best = max(
            (common_prefix(slot.token_ids, prompt_ids, min(slot.num_held, limit)), slot.is_free, index)
            for index, slot in enumerate(self._slots)
        )
        return best[0], best[2]
