"""One draft, under way from the moment it is made and read when it is needed. Pure; the draft model is a callable."""

import contextlib

import numpy as np

from trtkit.errors import ServerError, TrtkitError
from trtkit.serving.llm_call import Llm, LlmCall
from trtkit.serving.tensor import Array


class Proposal:
    """The draft's continuation of one prompt.

    By tokens, an end id need not be drafted: the target chooses it or not. With by_logits it is a draft like any other,
    or answers would end too late. Models do not show it: a draft that returns fewer tokens than asked has ended. Where
    the models hand logits over between themselves, what stands for them is passed on as it is.
    """

    def __init__(
        self, draft: Llm, call: LlmCall, end_ids: tuple[int, ...], *, by_logits: bool, started_ns: int
    ) -> None:
        self.started_ns = started_ns
        self._max_draft_len = call.max_new_tokens
        self._end_ids = end_ids
        self._by_logits = by_logits
        self._replies = draft.generate(call)

    def read(self) -> tuple[tuple[int, ...], Array | None]:
        """Wait for the draft: its tokens, which may be none, and what they were drawn from where that is compared.

        Raises the model's own error, and ServerError DRAFT-LOGITS where logits are compared and none came.
        """
        replies = list(self._replies)
        proposed = tuple(token for reply in replies for token in reply.token_ids)
        if not self._by_logits:
            return before_end(proposed[: self._max_draft_len], self._end_ids), None
        rows = [reply.generation_logits for reply in replies if reply.generation_logits is not None]
        if not rows:
            raise ServerError(
                "the draft model returned no logits to accept by",
                "build with speculation.acceptance: logits, or leave use_draft_logits out",
                code="DRAFT-LOGITS",
            )
        logits = np.concatenate(rows)
        if len(proposed) < self._max_draft_len:
            proposed = (*proposed, *self._end_ids[:1])
        draft_ids = proposed[: min(len(before_end(proposed, self._end_ids)) + 1, self._max_draft_len)]
        return draft_ids, logits[: len(draft_ids)]

    def discard(self) -> None:
        """Read to the end what nobody needs, so that the stream it comes on can carry the next answer.

        A draft that fails has no part in the answer either.
        """
        with contextlib.suppress(TrtkitError):
            for _ in self._replies:
                pass


def before_end(tokens: tuple[int, ...], end_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens in front of the first that ends an answer."""
    ends = (position for position, token in enumerate(tokens) if token in end_ids)
    return tokens[: next(ends, len(tokens))]
