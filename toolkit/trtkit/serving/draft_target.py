"""The draft-target loop of one answer: propose, verify, accept, roll back. Pure: models are callables, no Triton."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trtkit.acceptance import Acceptance
from trtkit.draft_length import DraftLength
from trtkit.serving.context import Context, RollingWindow

FinishReason = Literal["length", "end_id", "stop_words", "cancelled"]


@dataclass(frozen=True)
class LlmCall:
    """One request to a `tensorrt_llm` model.

    sampling has the model's own input names; it goes to draft and target alike, so that the draft guesses under the
    same rules. draft_ids empty means that none are sent: the runtime rejects an empty draft.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    draft_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    streaming: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    num_evicted_tokens: int = 0


class Llm(Protocol):
    """A model that continues a prompt."""

    def generate(self, call: LlmCall) -> Iterator[tuple[int, ...]]:
        """New tokens, response by response. The caller reads to the end, also after `stop`."""
        ...

    def stop(self, request_id: str) -> None:
        """Ask for an early end of the call with this id."""
        ...


@dataclass(frozen=True)
class Generation:
    """What one answer is made of. Any of end_ids ends it and is no part of it; rolling bounds what models are shown."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    end_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    rolling: RollingWindow | None = None


class DraftTargetRun:
    """One answer in the making.

    `steps` yields the new tokens of each step as soon as the target has confirmed them. Between steps the caller may
    `stop` the run. What was drafted in vain never leaves this class: the next prompt holds confirmed tokens only,
    which is the roll-back; the models find the rest of their caches again by prefix.
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
        self._context = Context(generation.prompt_ids, generation.rolling)
        self.token_ids: list[int] = []
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

    def steps(self) -> Iterator[tuple[int, ...]]:
        """New tokens of each step; never empty. finish_reason is set when the iterator ends."""
        if self._remaining() <= 0:
            self.stop("length")
        while self.finish_reason is None:
            max_draft_len = min(self._draft_length.next(), self._remaining() - 1) if self._draft is not None else 0
            yield from self._speculate(max_draft_len) if max_draft_len > 0 else self._decode()

    def _speculate(self, max_draft_len: int) -> Iterator[tuple[int, ...]]:
        """One draft and its verification."""
        started_ns = self._clock_ns()
        draft_ids = self._propose(max_draft_len)
        drafted_ns = self._clock_ns()
        self.draft_time_ns += drafted_ns - started_ns
        if self.finish_reason is not None:
            return
        returned = self._verify(draft_ids)
        verified_ns = self._clock_ns()
        self.target_time_ns += verified_ns - drafted_ns
        outcome = _outcome(draft_ids, returned)
        if outcome is not None:
            self.outcomes.append(outcome)
            self._draft_length.observe_draft(outcome, drafted_ns - started_ns, verified_ns - drafted_ns)
        kept = self._keep(returned)
        if len(returned) <= len(draft_ids) and returned == draft_ids[: len(returned)]:
            # Every returned token is the draft's: the target's own one is missing because it was an end id.
            self.stop("end_id")
        if kept:
            yield kept

    def _propose(self, max_draft_len: int) -> tuple[int, ...]:
        """The draft's continuation, cut before an end id; may be empty."""
        assert self._draft is not None
        # Room for the verification too: draft and target must be shown the same tokens.
        self._context.make_room(max_draft_len + 1)
        call = self._call(max_draft_len)
        proposed = [token for tokens in self._draft.generate(call) for token in tokens]
        return self._before_end(tuple(proposed[:max_draft_len]))

    def _verify(self, draft_ids: tuple[int, ...]) -> tuple[int, ...]:
        """What the target makes of the draft: accepted tokens, then one of its own."""
        call = self._call(len(draft_ids) + 1, draft_ids=draft_ids)
        self.num_target_passes += 1
        return tuple(token for tokens in self._target.generate(call) for token in tokens)

    def _decode(self) -> Iterator[tuple[int, ...]]:
        """The target alone, for as many tokens as the draft length asks for before it is consulted again."""
        wanted = min(self._draft_length.plain_tokens() or self._remaining(), self._remaining())
        wanted = self._context.room_tokens(wanted)
        call = self._call(wanted, streaming=True)
        started_ns, num_tokens, told = self._clock_ns(), 0, False
        for tokens in self._target.generate(call):
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

    def _call(self, max_new_tokens: int, *, draft_ids: tuple[int, ...] = (), streaming: bool = False) -> LlmCall:
        self._num_calls += 1
        generation = self.generation
        return LlmCall(
            request_id=f"{generation.request_id}-{self._num_calls}",
            prompt_ids=self._context.make_room(max_new_tokens),
            max_new_tokens=max_new_tokens,
            draft_ids=draft_ids,
            # A call's minimum may not exceed its maximum, which is small for a draft.
            min_new_tokens=min(max_new_tokens, max(0, generation.min_new_tokens - len(self.token_ids))),
            streaming=streaming,
            sampling=generation.sampling,
            num_evicted_tokens=self._context.num_evicted_tokens,
        )

    def _keep(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Append confirmed tokens up to an end id or the budget, and note why the answer is over."""
        kept = self._before_end(tuple(tokens))[: self._remaining()]
        self.token_ids.extend(kept)
        self._context.append(kept)
        if len(kept) < len(tokens) and tokens[len(kept)] in self.generation.end_ids:
            self.stop("end_id")
        elif self._remaining() == 0:
            self.stop("length")
        return kept

    def _before_end(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        ends = (position for position, token in enumerate(tokens) if token in self.generation.end_ids)
        return tokens[: next(ends, len(tokens))]

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
