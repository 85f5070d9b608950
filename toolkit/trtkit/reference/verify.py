"""Rows of logits become tokens of a sequence, draft by draft. Knows the acceptance rule, no cache and no model."""

import math

from torch import Tensor

from trtkit.errors import RequestError
from trtkit.reference.sampling.noise import uniform
from trtkit.reference.sampling.sampler import Draw, choose
from trtkit.reference.scheduler.sequence import Sequence


class Choices:
    """The logits of one pass, with the best token of every row found at once.

    R rows, V vocab_size.
        logits  [R, V] float32
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        best = logits.max(dim=1)
        self._best_logits: list[float] = best.values.tolist()
        self._best_ids: list[int] = best.indices.tolist()

    def are_finite(self, rows: range) -> bool:
        """No row holds a NaN or an infinity as its best logit."""
        return all(math.isfinite(self._best_logits[row]) for row in rows)

    def extend(self, sequence: Sequence, rows: range) -> int:
        """Append the tokens that the model itself chooses at `rows`, and return how many those are.

        Row i speaks after the drafts before it, so it counts only while all of them were chosen too: the first token
        that differs from its draft is kept and ends the pass. This is TensorRT-LLM's acceptance by tokens; since the
        draw at a position depends on nothing but seed and position, the answer is the one without drafts.

        Raises RequestError REQ-NAN when logits are not finite.
        """
        drafts = sequence.draft_ids
        for count, row in enumerate(rows, start=1):
            sequence.append(self._choose(sequence, row))
            is_accepted = count <= len(drafts) and sequence.token_ids[-1] == drafts[count - 1]
            if not is_accepted or sequence.finish_reason() is not None:
                return count
        return len(rows)

    def _choose(self, sequence: Sequence, row: int) -> int:
        if not math.isfinite(self._best_logits[row]):
            raise RequestError(
                f"the logits after token {len(sequence.token_ids) - 1} are not finite",
                "check the checkpoint's weights; float16 overflows where bfloat16 and float32 do not",
                code="REQ-NAN",
            )
        params, forbidden_id = sequence.request.sampling, sequence.forbidden_id
        if params.is_greedy and not params.has_penalties and forbidden_id is None:
            return self._best_ids[row]
        noise = 0.0 if params.is_greedy else uniform(params.seed, len(sequence.token_ids))
        return choose(self._logits[row], Draw(params, sequence.counts, noise, forbidden_id))
