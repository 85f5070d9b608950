"""The draft-target loop of one answer: propose, verify, accept, roll back. Pure: models are callables, no Triton."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trtkit.acceptance import Acceptance
from trtkit.draft_length import DraftLength
from trtkit.serving.context import Context, RollingWindow
from trtkit.serving.llm_call import Llm, LlmCall
from trtkit.serving.proposal import Proposal, before_end
from trtkit.serving.run_scores import RunScores, Score
from trtkit.serving.tensor import Array

FinishReason = Literal["length", "end_id", "stop_words", "cancelled"]


@dataclass(frozen=True)
class Generation:
    """What one answer is made of.

    Any of end_ids ends it and is no part of it; rolling bounds what models are shown. by_logits: drafts are accepted
    by comparing distributions, not tokens. returns: what the caller wants besides tokens.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    end_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    rolling: RollingWindow | None = None
    by_logits: bool = False
    returns: frozenset[Score] = frozenset()


class DraftTargetRun:
    """One answer in the making.

    `steps` yields the new tokens of each step as soon as the target has confirmed them. Between steps the caller may
    `stop` the run. What was drafted in vain never leaves this class: the next prompt holds confirmed tokens only,
    which is the roll-back; the models find the rest of their caches again by prefix. The next draft is asked for before
    a step's tokens are handed out, so that the draft model works while they are shown.
    """

    def __init__(
        self,
        generation: Generation,
        target: Llm,
        draft: Llm | None,
        draft_length: DraftLength,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.generation = generation
        self._target = target
        self._draft = draft
        self._draft_length = draft_length
        self._clock_ns = clock_ns
        self._num_calls = 0
        self._proposal: Proposal | None = None
        self._context = Context(generation.prompt_ids, generation.rolling)
        self.token_ids: list[int] = []
        self.scores = RunScores()
        self.outcomes: list[Acceptance] = []
        self.num_target_passes = 0
        self.draft_time_ns = 0
        self.target_time_ns = 0
        self.finish_reason: FinishReason | None = None

    @property
    def num_evicted_tokens(self) -> int:
        """Tokens that the rolling window dropped."""
        return self._context.num_evicted_tokens

    def stop(self, reason: FinishReason) -> None:
        """End the run at the step that is under way; models that are still generating are told so."""
        self.finish_reason = self.finish_reason or reason

    def stop_at_word(self, num_dropped: int = 0) -> None:
        """End the run by a stop word. The last num_dropped tokens of the step came after it, and are none of it."""
        self.finish_reason = "stop_words"
        del self.token_ids[len(self.token_ids) - num_dropped :]
        self.scores.trim(len(self.token_ids))

    def steps(self) -> Iterator[tuple[int, ...]]:
        """New tokens of each step; never empty. finish_reason is set when the iterator ends."""
        if self._remaining() <= 0:
            self.stop("length")
        self._propose()
        while self.finish_reason is None:
            yield from self._decode() if self._proposal is None else self._speculate(self._proposal)
        if self._proposal is not None:
            self._proposal.discard()

    def _propose(self) -> None:
        """Ask for the next draft, where one is wanted."""
        self._proposal = None
        if self.finish_reason is not None or self._draft is None:
            return
        max_draft_len = min(self._draft_length.next(), self._remaining() - 1)
        if max_draft_len <= 0:
            return
        started_ns = self._clock_ns()
        # Room for the verification too: draft and target must be shown the same tokens.
        self._context.make_room(max_draft_len + 1)
        by_logits, end_ids = self.generation.by_logits, self.generation.end_ids
        call = self._call(max_draft_len, returns=frozenset({"generation_logits"} if by_logits else ()))
        self._proposal = Proposal(self._draft, call, end_ids, by_logits=by_logits, started_ns=started_ns)

    def _speculate(self, proposal: Proposal) -> Iterator[tuple[int, ...]]:
        """Verify one draft."""
        draft_ids, draft_logits = proposal.read()
        drafted_ns = self._clock_ns()
        self.draft_time_ns += drafted_ns - proposal.started_ns
        returned = self._verify(draft_ids, draft_logits)
        verified_ns = self._clock_ns()
        self.target_time_ns += verified_ns - drafted_ns
        outcome = _outcome(draft_ids, returned)
        if outcome is not None:
            self.outcomes.append(outcome)
            self._draft_length.observe_draft(outcome, drafted_ns - proposal.started_ns, verified_ns - drafted_ns)
        kept = self._keep(returned)
        if len(returned) <= len(draft_ids) and returned == draft_ids[: len(returned)]:
            # Every returned token is the draft's: the target's own one is missing because it was an end id.
            self.stop("end_id")
        self._propose()
        if kept:
            yield kept

    def _verify(self, draft_ids: tuple[int, ...], draft_logits: Array | None) -> tuple[int, ...]:
        """What the target makes of the draft: accepted tokens, then one of its own."""
        call = self._call(len(draft_ids) + 1, draft_ids=draft_ids, draft_logits=draft_logits if draft_ids else None)
        self.num_target_passes += 1
        replies = list(self._target.generate(self._scored(call)))
        for reply in replies:
            self.scores.note(reply)
        return tuple(token for reply in replies for token in reply.token_ids)

    def _decode(self) -> Iterator[tuple[int, ...]]:
        """The target alone, for as many tokens as the draft length asks for before it is consulted again."""
        wanted = min(self._draft_length.plain_tokens() or self._remaining(), self._remaining())
        wanted = self._context.room_tokens(wanted)
        call = self._call(wanted, streaming=True)
        started_ns, num_tokens, told = self._clock_ns(), 0, False
        for reply in self._target.generate(self._scored(call)):
            tokens = reply.token_ids
            self.scores.note(reply)
            num_tokens += len(tokens)
            self.num_target_passes += len(tokens)
            if self.finish_reason is None and (kept := self._keep(tokens)):
                yield kept
            if self.finish_reason is not None and num_tokens < wanted and not told:
                told = True
                self._target.stop(call.request_id)
        elapsed_ns = self._clock_ns() - started_ns
        self.target_time_ns += elapsed_ns
        self._draft_length.observe_plain(num_tokens, elapsed_ns)
        if num_tokens < wanted:
            self.stop("end_id")
        self._propose()

    def _call(self, max_new_tokens: int, **changes: Any) -> LlmCall:
        self._num_calls += 1
        generation = self.generation
        return LlmCall(
            request_id=f"{generation.request_id}-{self._num_calls}",
            prompt_ids=self._context.make_room(max_new_tokens),
            max_new_tokens=max_new_tokens,
            min_new_tokens=min(max(0, generation.min_new_tokens - len(self.token_ids)), max_new_tokens),
            sampling=generation.sampling,
            num_evicted_tokens=self._context.num_evicted_tokens,
            **changes,
        )

    def _scored(self, call: LlmCall) -> LlmCall:
        """The call with what the caller wants back; the prompt's logits come from the first call alone."""
        wanted = self.generation.returns
        return replace(call, returns=wanted - {"context_logits"} if self.scores.has_replies else wanted)

    def _keep(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Append confirmed tokens up to an end id or the budget, and note why the answer is over."""
        kept = before_end(tuple(tokens), self.generation.end_ids)[: self._remaining()]
        self.token_ids.extend(kept)
        self.scores.trim(len(self.token_ids))
        self._context.append(kept)
        if len(kept) < len(tokens) and tokens[len(kept)] in self.generation.end_ids:
            self.stop("end_id")
        elif self._remaining() == 0:
            self.stop("length")
        return kept

    def _remaining(self) -> int:
        return self.generation.max_new_tokens - len(self.token_ids)


def _outcome(draft_ids: Sequence[int], returned: tuple[int, ...]) -> Acceptance | None:
    """The Acceptance of one verification, or None when nothing was drafted or nothing came back.

    A target whose own token was an end id returns accepted tokens only; the record then keeps all but the last as
    accepted and counts that one as the target's, so that no rate exceeds what is known.
    """
    if not draft_ids or not returned:
        return None
    matches = (position for position, (d, r) in enumerate(zip(draft_ids, returned, strict=False)) if d != r)
    num_accepted = min(next(matches, len(draft_ids)), len(returned) - 1)
    return Acceptance(len(draft_ids), returned[: num_accepted + 1])
