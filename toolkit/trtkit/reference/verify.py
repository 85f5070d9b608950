"""Rows of logits become tokens of a sequence, draft by draft. Knows the acceptance rules, no cache and no model."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtkit.errors import RequestError
from trtkit.reference.request import FloatArray
from trtkit.reference.sampling.noise import Purpose, uniform
from trtkit.reference.sampling.rejection import accepts, reaches, recover
from trtkit.reference.sampling.sampler import choose, invert, probabilities
from trtkit.reference.sampling.scores import Past, adjust
from trtkit.reference.scheduler.sequence import Sequence


@dataclass(frozen=True)
class Chosen:
    """What one pass added to a sequence, with the scores that its request asked for.

    log_probs are of the distribution before top-k, top-p and min-p. generation_logits [num_tokens, V] are the model's
    own, before bias and penalties.
    """

    num_tokens: int
    log_probs: tuple[float, ...]
    generation_logits: FloatArray | None


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

    def logits(self, rows: range) -> FloatArray:
        """The logits of some rows, as a caller may keep them."""
        return np.array(self._logits[rows.start : rows.stop].numpy(force=True), dtype=np.float32)

    def extend(self, sequence: Sequence, rows: range) -> Chosen:
        """Append the tokens that the model itself chooses at `rows`.

        Row i speaks after the drafts before it, so it counts only while all of them were chosen too: the first token
        that differs from its draft is kept and ends the pass.

        Without draft logits this is acceptance by tokens: every token is the model's own draw, and since the draw at a
        position depends on nothing but seed and position, the answer is the one without drafts. With draft logits it
        is exact speculative sampling (sampling/rejection.py): the answer has the same distribution, and as many drafts
        are kept as any exact rule can keep.

        Raises RequestError REQ-NAN when logits are not finite, REQ-SCORES when what the request forbids leaves none.
        """
        drafts, log_probs = sequence.draft_ids, []
        count = 0
        for count, row in enumerate(rows, start=1):
            if 1 < count <= len(drafts) and not math.isfinite(self._best_logits[row]):
                count -= 1  # perhaps only the drafts behind it are to blame: it is computed again, without them
                break
            past = _past(sequence)
            token_id = self._next_token(sequence, past, row, count - 1)
            if sequence.request.returns.log_probs:
                log_probs.append(self._log_prob(sequence, past, row, token_id))
            sequence.append(token_id)
            is_accepted = count <= len(drafts) and token_id == drafts[count - 1]
            if not is_accepted or sequence.finish_reason() is not None:
                break
        kept = self.logits(rows[:count]) if sequence.request.returns.generation_logits else None
        return Chosen(count, tuple(log_probs), kept)

    def _next_token(self, sequence: Sequence, past: Past, row: int, index: int) -> int:
        """The token at `row`, which is judged against the index-th draft."""
        params = sequence.request.sampling
        position = len(sequence.token_ids)
        if not math.isfinite(self._best_logits[row]):
            raise not_finite(position - 1)
        if sequence.draft_logits is not None and index < len(sequence.draft_ids):
            return self._judge(sequence, past, row, index)
        if params.is_greedy and not params.has_penalties and past.is_neutral:
            return self._best_ids[row]
        noise = 0.0 if params.is_greedy else uniform(params.seed, position)
        return int(choose(adjust(self._logits[row], params, past), params, noise))

    def _judge(self, sequence: Sequence, past: Past, row: int, index: int) -> int:
        """The index-th draft, or the token in its place."""
        request, position = sequence.request, len(sequence.token_ids)
        params, threshold = request.sampling, request.draft_acceptance_threshold
        assert sequence.draft_logits is not None
        draft_logits = torch.from_numpy(np.array(sequence.draft_logits[index], np.float32)).to(self._logits.device)
        target = probabilities(adjust(self._logits[row], params, past), params)
        try:
            draft = probabilities(adjust(draft_logits, params, past), params)
        except RequestError:  # it had no token that the request allows, so it drew none; the target's own draw it is
            return int(invert(target, uniform(params.seed, position, Purpose.RECOVER)))
        token_id = torch.tensor(sequence.draft_ids[index], device=target.device)
        if threshold is None:
            keeps = accepts(target, draft, token_id, uniform(params.seed, position, Purpose.ACCEPT))
        else:
            keeps = reaches(target, draft, token_id, threshold)
        return int(token_id if keeps else recover(target, draft, uniform(params.seed, position, Purpose.RECOVER)))

    def _log_prob(self, sequence: Sequence, past: Past, row: int, token_id: int) -> float:
        scores = adjust(self._logits[row], sequence.request.sampling, past)
        return float(torch.log_softmax(scores, dim=0)[token_id])


def not_finite(position: int) -> RequestError:
    """What ends a request whose token at `position` became a NaN or an infinity."""
    return RequestError(
        f"the logits after token {position} are not finite",
        "check the checkpoint's weights; float16 overflows where bfloat16 and float32 do not",
        code="REQ-NAN",
    )


def _past(sequence: Sequence) -> Past:
    bias = sequence.request.embedding_bias
    return Past(
        counts=sequence.counts,
        forbidden_ids=sequence.forbidden_ids,
        bias=None if bias is None else torch.from_numpy(np.array(bias, np.float32)),
    )
