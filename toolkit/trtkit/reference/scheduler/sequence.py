"""Sequence: one request on its way. Knows tokens and counts, no tensors and no other sequence."""

from collections import Counter
from collections.abc import Sequence as Tokens

import numpy as np

from trtkit.acceptance import Acceptance
from trtkit.reference.kv_cache.block_tables import BlockTable
from trtkit.reference.request import FinishReason, FloatArray, GenerationRequest
from trtkit.reference.sampling.words import completions, ends_with_word


class Sequence:
    """Prompt and answer so far, and how much of them the cache holds.

    token_ids[:num_computed]   in the cache
    token_ids[num_computed:]   to be computed; while decoding that is exactly the last token
    draft_ids, draft_logits    follow token_ids until they are verified, then they are gone
    context_logits             of the prompt's rows, pass by pass, where the request asks for them
    table                      where the cache holds them; None while the sequence waits
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.table: BlockTable | None = None
        self.num_reused = 0
        self.num_computed = 0
        self.num_preemptions = 0
        self.token_ids = list(request.prompt_ids)
        self.draft_ids: tuple[int, ...] = ()
        self.draft_logits: FloatArray | None = None
        self.take_draft(request.draft_ids, request.draft_logits)
        self.context_logits: list[FloatArray] = []
        self.counts = Counter(request.prompt_ids) if request.sampling.has_penalties else Counter[int]()

    def start(self, table: BlockTable) -> None:
        """Run on these blocks; what they hold already is not computed again."""
        self.table = table
        self.num_computed = table.num_reused_tokens
        if not self.num_preemptions:
            self.num_reused = table.num_reused_tokens

    def preempt(self) -> BlockTable:
        """Give the blocks up and wait again, with the answer so far as a part of the prompt."""
        table = self.blocks
        self.table, self.num_computed = None, 0
        self.num_preemptions += 1
        self.context_logits.clear()
        return table

    @property
    def blocks(self) -> BlockTable:
        """The table of a running sequence."""
        assert self.table is not None, f"{self.request.request_id} is not running"
        return self.table

    @property
    def max_tokens(self) -> int:
        """Tokens of the prompt and the longest answer."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens

    @property
    def num_new_tokens(self) -> int:
        """Length of the answer so far."""
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def is_prefilling(self) -> bool:
        """More than the one pass of a decode step is needed before the next token."""
        return self.num_computed < len(self.token_ids) - 1 or self.num_new_tokens == 0

    @property
    def wants_context(self) -> bool:
        """The logits of all rows of a pass are asked for, because the prompt is still under way."""
        return self.request.returns.context_logits and self.num_new_tokens == 0

    def pending(self) -> list[int]:
        """Tokens whose keys and values come next, drafts last."""
        return [*self.token_ids[self.num_computed :], *self.draft_ids]

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """The end token while the answer is still too short for it, and what would complete a bad word."""
        request = self.request
        is_too_short = self.num_new_tokens < request.min_new_tokens
        ends = (request.end_id,) if request.end_id is not None and is_too_short else ()
        return (*ends, *completions(self.token_ids, request.bad_words))

    def append(self, token_id: int) -> None:
        """Add one chosen token to the answer."""
        self.token_ids.append(token_id)
        if self.request.sampling.has_penalties:
            self.counts[token_id] += 1

    def take_draft(self, draft_ids: tuple[int, ...], draft_logits: FloatArray | None) -> None:
        """Have drafts verified in the pass over the last token; the answer's very last one is the model's own."""
        self.draft_ids = draft_ids[: self.request.max_new_tokens - self.num_new_tokens - 1]
        self.draft_logits = draft_logits

    def take_context_logits(self) -> FloatArray | None:
        """What the passes over the prompt brought, once."""
        whole = np.concatenate(self.context_logits) if self.context_logits else None
        self.context_logits.clear()
        return whole

    def cut_draft(self, num_drafts: int) -> None:
        """Have at most so many drafts verified; what is left out was a guess only."""
        self.draft_ids = self.draft_ids[:num_drafts]

    def settle(self, num_chosen: int) -> Acceptance | None:
        """Close a pass that chose the last num_chosen tokens: drop the drafts, rewind what was computed for them.

        The cache is right for every token that was an input of the pass and stayed: all but the last chosen one.
        """
        chosen = tuple(self.token_ids[-num_chosen:])
        self.num_computed = len(self.token_ids) - 1
        num_draft_tokens, self.draft_ids, self.draft_logits = len(self.draft_ids), (), None
        return Acceptance(num_draft_tokens, chosen) if num_draft_tokens else None

    def finish_reason(self) -> FinishReason | None:
        """Why the answer is complete, or None while it is not."""
        if self.num_new_tokens and self.token_ids[-1] == self.request.end_id:
            return "end_id"
        if self.request.stop_words and ends_with_word(self.token_ids, self.num_new_tokens, self.request.stop_words):
            return "stop_words"
        return "length" if self.num_new_tokens >= self.request.max_new_tokens else None


def next_chunk(sequence: Sequence, budget: int) -> tuple[Tokens[int], int]:
    """(tokens to compute now, rows of them, at the end, that choose tokens).

    The last prompt token and the drafts stay in one chunk, because they are verified together; so a chunk may exceed
    a budget that is smaller than a draft.
    """
    pending = sequence.pending()
    num_choosing = len(sequence.draft_ids) + 1
    num_before = len(pending) - num_choosing
    if len(pending) <= budget or num_before == 0:
        return pending, num_choosing
    return pending[: max(1, min(budget, num_before))], 0
