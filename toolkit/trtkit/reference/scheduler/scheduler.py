"""Scheduler: admission and the work of one step. Knows slots and sequences, no tensors."""

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from trtkit.reference.kv_cache.slots import Placement, SlotPool
from trtkit.reference.request import GenerationRequest
from trtkit.reference.scheduler.sequence import Sequence, next_chunk


@dataclass(frozen=True)
class Segment:
    """Rows of one sequence in one pass.

    token_ids take the positions from `start` on; the last num_choosing rows need logits.
    """

    sequence: Sequence
    start: int
    token_ids: Tokens[int]
    num_choosing: int


@dataclass(frozen=True)
class StepPlan:
    """The prefixes to copy first, then the rows to compute."""

    copies: tuple[Placement, ...]
    segments: tuple[Segment, ...]


class Scheduler:
    """First come, first served: running sequences each decode one token, prompts share what is left of the budget.

    max_num_tokens bounds the rows of one pass. Decode rows come first, so a long prompt delays nobody by more than
    one chunk. It must exceed the number of slots: then a prompt gets a row in every step, and none starves.
    """

    def __init__(self, pool: SlotPool, max_num_tokens: int) -> None:
        self.pool = pool
        self._max_num_tokens = max_num_tokens
        self._waiting: deque[GenerationRequest] = deque()
        self._running: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        """A request is waiting or running."""
        return bool(self._waiting or self._running)

    def knows(self, request_id: str) -> bool:
        """The request is waiting or running."""
        return request_id in self._running or any(request.request_id == request_id for request in self._waiting)

    def running(self, request_id: str) -> Sequence | None:
        """The sequence of a request that has been admitted."""
        return self._running.get(request_id)

    def enqueue(self, request: GenerationRequest) -> None:
        """Let a request wait for a slot."""
        self._waiting.append(request)

    def plan(self) -> StepPlan:
        """Admit what fits, then share the rows of the next pass out."""
        copies = self._admit()
        by_phase = sorted(self._running.values(), key=lambda sequence: sequence.is_prefilling)  # stable: oldest first
        budget = self._max_num_tokens
        segments: list[Segment] = []
        for sequence in by_phase:
            if budget <= 0:
                break
            token_ids, num_choosing = next_chunk(sequence, budget)
            segments.append(Segment(sequence, sequence.num_computed, token_ids, num_choosing))
            budget -= len(token_ids)
        return StepPlan(copies, tuple(segments))

    def advance(self, sequence: Sequence) -> None:
        """Tell the pool what the cache holds of a sequence now."""
        self.pool.commit(sequence.slot, sequence.token_ids, sequence.num_computed)

    def remove(self, request_id: str) -> Sequence | None:
        """Forget a request and free its slot at once; its sequence when it was running."""
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            self.pool.release(sequence.slot)
        self._waiting = deque(request for request in self._waiting if request.request_id != request_id)
        return sequence

    def check(self) -> None:
        """Raise AssertionError when slots and sequences do not fit each other."""
        self.pool.check()
        slots = [sequence.slot for sequence in self._running.values()]
        assert len(set(slots)) == len(slots), "two sequences own one slot"

    def _admit(self) -> tuple[Placement, ...]:
        """Give waiting requests slots in their order; the prefixes that have to be copied for them."""
        copies: list[Placement] = []
        while self._waiting:
            placement = self.pool.acquire(self._waiting[0].prompt_ids)
            if placement is None:
                break
            request = self._waiting.popleft()
            self._running[request.request_id] = Sequence(request, placement)
            if placement.copy_from is not None:
                copies.append(placement)
        return tuple(copies)
