"""Drafts for many sequences at once: who may make them, and the draft engine that does. Knows no acceptance rule."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

import numpy as np

from trtkit.errors import RequestError
from trtkit.reference.engine import Engine
from trtkit.reference.request import FloatArray, GenerationRequest, Returns


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens; with the logits that they were drawn from, [len(draft_ids), V], where those are wanted."""

    draft_ids: tuple[int, ...] = ()
    draft_logits: FloatArray | None = None


class Proposer(Protocol):
    """Makes drafts for the target."""

    def propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
        """One proposal for each request, of at most so many tokens; fewer, or none, where it has nothing to say.

        A request's prompt is prompt and answer so far, and max_new_tokens what may still come.
        """
        ...


class EngineProposer:
    """A draft model. Its cache rolls back by itself: the next prompt finds the part of it that is still right.

    It draws under the request's own sampling, seed included. Without logits draft and target then draw with the same
    random number at a position, so that they agree more often. with_logits hands out what acceptance by logits needs.
    """

    def __init__(self, engine: Engine, vocab_size: int, *, with_logits: bool = False) -> None:
        """vocab_size is the target's. Raises RequestError when logits of another size could not be compared."""
        if with_logits and engine.vocab_size != vocab_size:
            raise RequestError(
                f"logits over {engine.vocab_size} tokens (draft) cannot be compared with {vocab_size} (target)",
                "accept by tokens, or choose a draft with the target's vocabulary size",
                code="REQ-ARRAY",
            )
        self._engine = engine
        self._vocab_size = vocab_size
        self._with_logits = with_logits

    def propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
        """Nothing for a prompt that the draft cannot read: too long, or with a token that only the target knows.

        Raises RequestError REQ-BUSY when the draft engine is answering others, whose outputs would be lost.
        """
        if self._engine.has_work:
            raise RequestError("the draft engine is answering others", "use an engine of its own", code="REQ-BUSY")
        try:
            return self._propose(wanted)
        except BaseException:
            self._engine.drop_all()
            raise

    def _propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
        proposals = {str(index): Proposal() for index in range(len(wanted))}
        for index, (request, max_draft_len) in enumerate(wanted):
            asked = self._asked(str(index), request, max_draft_len)
            if asked is None:
                continue
            with suppress(RequestError):  # what the draft cannot do, the target does alone or refuses itself
                self._engine.submit(asked)
        while self._engine.has_work:
            for output in self._engine.step():
                sofar = proposals[output.request_id]
                proposals[output.request_id] = Proposal(
                    sofar.draft_ids + output.token_ids, _stacked(sofar.draft_logits, output.generation_logits)
                )
        return [self._readable(proposal) for proposal in proposals.values()]

    def _asked(self, request_id: str, request: GenerationRequest, max_draft_len: int) -> GenerationRequest | None:
        num_wanted = min(max_draft_len, self._engine.max_seq_len - len(request.prompt_ids))
        size = self._engine.vocab_size
        if num_wanted < 1 or max(request.prompt_ids, default=0) >= size:
            return None
        bias = request.embedding_bias
        return replace(
            request,
            request_id=request_id,
            max_new_tokens=num_wanted,
            min_new_tokens=min(request.min_new_tokens, num_wanted),
            end_id=request.end_id if request.end_id is not None and request.end_id < size else None,
            embedding_bias=bias if bias is not None and len(bias) == size else None,
            stop_words=(),
            bad_words=tuple(word for word in request.bad_words if max(word) < size),
            draft_ids=(),
            draft_logits=None,
            draft_acceptance_threshold=None,
            returns=Returns(generation_logits=self._with_logits),
        )

    def _readable(self, proposal: Proposal) -> Proposal:
        """Up to the first token that the target does not know."""
        draft_ids = tuple(takewhile(lambda token_id: token_id < self._vocab_size, proposal.draft_ids))
        return replace(proposal, draft_ids=draft_ids)


def _stacked(first: FloatArray | None, second: FloatArray | None) -> FloatArray | None:
    return second if first is None or second is None else np.concatenate([first, second])
