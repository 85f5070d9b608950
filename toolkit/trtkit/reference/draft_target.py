"""Draft-target decoding on two engines of one process: propose, verify, accept; the caches roll back by themselves.

The loop is the one that runs in front of a server: every round is one draft request and one target request. A cache
slot keeps what a request computed, and the next round reuses the part of it that is still right, so rejected drafts
need no undoing of their own.
"""

from dataclasses import dataclass, replace
from itertools import takewhile

from trtkit.acceptance import Acceptance
from trtkit.reference.engine import Engine
from trtkit.reference.request import FinishReason, GenerationRequest


@dataclass(frozen=True)
class SpeculativeAnswer:
    """The answer's tokens, why it ended, and one Acceptance for every round that verified a draft."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    acceptances: tuple[Acceptance, ...]


def generate_with_draft(
    target: Engine, draft: Engine, request: GenerationRequest, max_draft_len: int
) -> SpeculativeAnswer:
    """Answer `request` with the target's tokens, up to max_draft_len of them proposed by the draft in every round.

    The tokens are those of target.generate(request), for sampling too: both models draw with the same number at a
    position, and the target's draw is what is kept. With max_draft_len 0 the draft is not used.
    Raises RequestError when the request is impossible, or when one of the engines is answering another.
    """
    target.validate(request)
    answer: list[int] = []
    acceptances: list[Acceptance] = []
    while _finish_reason(request, answer) is None:
        rest = _rest(request, answer)
        proposed = propose(draft, rest, max_draft_len, target.vocab_size)
        token_ids, acceptance = verify(target, rest, proposed)
        answer.extend(token_ids)
        if acceptance is not None:
            acceptances.append(acceptance)
    return SpeculativeAnswer(tuple(answer), _finish_reason(request, answer) or "length", tuple(acceptances))


def propose(draft: Engine, request: GenerationRequest, max_draft_len: int, vocab_size: int) -> tuple[int, ...]:
    """What the draft would answer, at most max_draft_len tokens, fewer where it ends or leaves the target's vocabulary.

    One token of the answer is always left to the target. Nothing is proposed for a prompt that the draft cannot read,
    because it is too long or holds a token that only the target knows: the target then goes on alone.
    """
    num_wanted = min(max_draft_len, request.max_new_tokens - 1, draft.max_seq_len - len(request.prompt_ids))
    if num_wanted < 1 or max(request.prompt_ids, default=0) >= draft.vocab_size:
        return ()
    outputs = draft.generate(replace(request, max_new_tokens=num_wanted, min_new_tokens=0))
    proposed = [token_id for output in outputs for token_id in output.token_ids]
    return tuple(takewhile(lambda token_id: token_id < vocab_size, proposed))


def verify(
    target: Engine, request: GenerationRequest, draft_ids: tuple[int, ...]
) -> tuple[tuple[int, ...], Acceptance | None]:
    """The target's tokens of this round: the accepted drafts and one of its own, or, without a draft, all the rest."""
    num_tokens = len(draft_ids) + 1 if draft_ids else request.max_new_tokens
    outputs = target.generate(
        replace(
            request,
            draft_ids=draft_ids,
            max_new_tokens=num_tokens,
            min_new_tokens=min(request.min_new_tokens, num_tokens),
        )
    )
    if draft_ids:
        return outputs[0].token_ids, outputs[0].acceptance
    return tuple(token_id for output in outputs for token_id in output.token_ids), None


def _rest(request: GenerationRequest, answer: list[int]) -> GenerationRequest:
    """The request that continues the answer."""
    return replace(
        request,
        prompt_ids=(*request.prompt_ids, *answer),
        draft_ids=(),
        max_new_tokens=request.max_new_tokens - len(answer),
        min_new_tokens=max(request.min_new_tokens - len(answer), 0),
    )


def _finish_reason(request: GenerationRequest, answer: list[int]) -> FinishReason | None:
    if answer and answer[-1] == request.end_id:
        return "end_id"
    return "length" if len(answer) >= request.max_new_tokens else None
