"""Scheduler: admission, preemption, and the work of one step. Knows blocks by their tables, no tensors."""

from collections import OrderedDict
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from trtkit.reference.kv_cache.block_tables import BlockTables, RowWork
from trtkit.reference.kv_cache.prefix import common_prefix
from trtkit.reference.request import GenerationRequest
from trtkit.reference.scheduler.sequence import Sequence, next_chunk

# So many tokens that another sequence computes right now are worth one step of waiting.
_WORTH_WAITING = 32


@dataclass(frozen=True)
class Segment:
    """Rows of one sequence in one pass.

    token_ids take the positions from `start` on; the last num_choosing rows choose tokens, the last num_logits rows
    need logits.
    """

    sequence: Sequence
    start: int
    token_ids: Tokens[int]
    num_choosing: int
    num_logits: int

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.token_ids)

    @property
    def num_known(self) -> int:
        """Tokens that are no drafts."""
        return len(self.token_ids) - max(0, self.num_choosing - 1)


@dataclass(frozen=True)
class StepPlan:
    """The cache rows to copy and clear first, then the rows to compute."""

    row_work: tuple[RowWork, ...]
    segments: tuple[Segment, ...]


class Scheduler:
    """First come, first served: running sequences each decode one token, prompts share what is left of the budget.

    max_num_tokens bounds the rows of one pass. Decode rows come first, so a long prompt delays nobody by more than
    one chunk. It must exceed max_sequences: every sequence that may run has a row in every step, drafts get what is
    left beside these, and none starves. Only the draft of a prompt may exceed the bound, by as much as one pass takes.
    A prompt that begins with what another is computing right now waits for that and finds it in the cache.

    When blocks run out, the sequence that came last gives all of its own back and waits again, first in line; what it
    had computed is computed again, or found again where its blocks were not taken meanwhile. The oldest sequence is
    never the one to go, so every request is answered in the end.
    """

    def __init__(self, tables: BlockTables, *, max_sequences: int, max_num_tokens: int) -> None:
        self.tables = tables
        self._max_sequences = max_sequences
        self._max_num_tokens = max_num_tokens
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        """A request is waiting or running."""
        return bool(self._waiting or self._running)

    def knows(self, request_id: str) -> bool:
        """The request is waiting or running."""
        return request_id in self._running or request_id in self._waiting

    def running(self, request_id: str) -> Sequence | None:
        """The sequence of a request that has been admitted."""
        return self._running.get(request_id)

    def enqueue(self, request: GenerationRequest) -> None:
        """Let a request wait for blocks."""
        self._waiting[request.request_id] = Sequence(request)

    def plan(self) -> StepPlan:
        """Share the rows of the next pass out: to what runs already, then to what can be admitted."""
        by_phase = sorted(self._running.values(), key=lambda sequence: sequence.is_prefilling)  # stable: oldest first
        budget = self._max_num_tokens
        planned: dict[str, Segment] = {}
        for sequence in by_phase:
            if budget <= 0:
                break
            if sequence.table is not None:
                budget -= self._schedule(sequence, budget, planned)
        while budget > 0 and not self._awaits(planned) and self._admit():
            budget -= self._schedule(next(reversed(self._running.values())), budget, planned)
        return StepPlan(tuple(self.tables.take_work()), tuple(planned.values()))

    def advance(self, sequence: Sequence) -> None:
        """Tell the tables what the cache holds of a sequence now."""
        self.tables.commit(sequence.blocks, sequence.token_ids, sequence.num_computed)

    def finish(self, sequence: Sequence) -> None:
        """Let a completed sequence go; its blocks stay for reuse."""
        del self._running[sequence.request.request_id]
        self.tables.release(sequence.blocks, sequence.token_ids, sequence.num_computed)

    def fail(self, sequence: Sequence) -> None:
        """Let a sequence go whose keys and values nobody may reuse."""
        del self._running[sequence.request.request_id]
        self.tables.discard(sequence.blocks)

    def cancel(self, request_id: str) -> Sequence:
        """Forget a request that is known, and free its blocks at once."""
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            self.tables.release(sequence.blocks)
            return sequence
        return self._waiting.pop(request_id)

    def cancel_all(self) -> None:
        """Forget all requests, and free their blocks."""
        for request_id in [*self._running, *self._waiting]:
            self.cancel(request_id)

    def check(self) -> None:
        """Raise AssertionError when blocks and sequences do not fit each other."""
        self.tables.check(sequence.blocks for sequence in self._running.values())
        assert len(self._running) <= self._max_sequences, "more sequences run than may"
        assert all(sequence.table is None for sequence in self._waiting.values()), "a waiting sequence owns blocks"

    def _admit(self) -> bool:
        """Start the request that has waited longest, if there is room for it.

        A block is left for each running sequence that may still need one, so that admission does not preempt.
        """
        if not self._waiting or len(self._running) >= self._max_sequences:
            return False
        sequence, block_size = next(iter(self._waiting.values())), self.tables.block_size
        growing = sum(len(other.blocks.blocks) * block_size < other.max_tokens for other in self._running.values())
        reuses = not sequence.request.returns.context_logits
        table = self.tables.admit(sequence.token_ids, max_tokens=sequence.max_tokens, spare=growing, reuses=reuses)
        if table is None:
            return False
        self._waiting.popitem(last=False)
        sequence.start(table)
        self._running[sequence.request.request_id] = sequence
        return True

    def _awaits(self, planned: dict[str, Segment]) -> bool:
        """The request that has waited longest begins with what this very pass computes: the next one finds it."""
        if not self._waiting or self.tables.reuse != "tokens":
            return False
        sequence = next(iter(self._waiting.values()))
        return not sequence.request.returns.context_logits and any(
            len(segment.token_ids) >= _WORTH_WAITING
            and _num_shared(segment, sequence.token_ids) - segment.start >= _WORTH_WAITING
            for segment in planned.values()
        )

    def _schedule(self, sequence: Sequence, budget: int, planned: dict[str, Segment]) -> int:
        """Plan the next rows of a sequence, preempting younger ones where blocks are lacking; the number of rows."""
        sequence.cut_draft(self._max_drafts(sequence, budget, len(planned)))
        token_ids, num_choosing = next_chunk(sequence, min(budget, self.tables.num_new_tokens))
        start = sequence.num_computed
        while not self.tables.grow(sequence.blocks, start, start + len(token_ids)):
            youngest = next(reversed(self._running.values()))
            self._preempt(youngest)
            planned.pop(youngest.request.request_id, None)
            if youngest is sequence:
                return budget  # nothing younger may start in this step either
        num_logits = len(token_ids) if sequence.wants_context else num_choosing
        planned[sequence.request.request_id] = Segment(sequence, start, token_ids, num_choosing, num_logits)
        return len(token_ids)

    def _max_drafts(self, sequence: Sequence, budget: int, num_planned: int) -> int:
        """How many drafts a sequence may verify: what one pass takes, beside a row for all that are not planned yet."""
        others = self._max_sequences - num_planned - 1
        num_rows = self.tables.num_new_tokens
        return (num_rows if sequence.is_prefilling else max(1, min(budget - others, num_rows))) - 1

    def _preempt(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        self.tables.release(sequence.preempt())
        self._waiting[sequence.request.request_id] = sequence
        self._waiting.move_to_end(sequence.request.request_id, last=False)


def _num_shared(segment: Segment, token_ids: Tokens[int]) -> int:
    """How many of the first tokens the cache holds behind a pass; the last one is always computed."""
    computed = segment.sequence.token_ids
    return common_prefix(computed, token_ids, min(segment.end, len(computed), len(token_ids) - 1))
