"""Beam search over one prompt: which beams go on, which are finished, when it is over. Knows logits, no engine.

The rules are those of transformers' beam search without sampling, so that both can be compared token by token: twice as
many candidates as beams are looked at, an ended one counts only among the best `width`, and its score is the sum of its
log probabilities over its length (end token included) to the power of length_penalty. Penalties, bias and exclusions
act on the logits before the softmax, as in TensorRT-LLM.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtkit.reference.request import Beam, FloatArray, GenerationRequest
from trtkit.reference.sampling.scores import Past, adjust
from trtkit.reference.sampling.words import completions, ends_with_word


@dataclass(frozen=True)
class _Candidate:
    """A beam and one more token; rank 0 is the most likely of all."""

    beam: Beam
    rank: int
    has_ended: bool


class BeamSearch:
    """The beams of one request. Ask for `running`, hand their logits to `advance`, until `is_done`."""

    def __init__(self, request: GenerationRequest) -> None:
        assert request.beam is not None, "the request asks for no beams"
        self._request = request
        self._rules = request.beam
        self.running: tuple[Beam, ...] = (Beam((), 0.0, ()),)
        self._finished: list[Beam] = []
        self._can_improve = True
        self._num_steps = 0
        self.is_done = False

    def beams(self) -> tuple[Beam, ...]:
        """The finished beams, best first."""
        return tuple(self._finished)

    def advance(self, logits: Sequence[FloatArray]) -> None:
        """Extend every running beam by the logits that follow it, [V] each, in the order of `running`."""
        rows = [self._log_probs(beam, row) for beam, row in zip(self.running, logits, strict=True)]
        candidates = self._candidates(torch.stack(rows), logits)
        self._num_steps += 1
        self._finish([each.beam for each in candidates if each.has_ended and each.rank < self._rules.width])
        going_on = [each.beam for each in candidates if not each.has_ended]
        self.running = tuple(going_on[: self._rules.width])
        self.is_done = not self.running or self._is_settled()

    def _log_probs(self, beam: Beam, logits: FloatArray) -> Tensor:
        request = self._request
        token_ids = (*request.prompt_ids, *beam.token_ids)
        forbidden = completions(token_ids, request.bad_words)
        if request.end_id is not None and len(beam.token_ids) < request.min_new_tokens:
            forbidden = (request.end_id, *forbidden)
        past = Past(
            counts=Counter(token_ids) if request.sampling.has_penalties else {},
            forbidden_ids=forbidden,
            bias=None if request.embedding_bias is None else torch.tensor(request.embedding_bias),
        )
        return torch.log_softmax(adjust(torch.from_numpy(logits), request.sampling, past), dim=-1)

    def _candidates(self, log_probs: Tensor, logits: Sequence[FloatArray]) -> list[_Candidate]:
        """The most likely extensions, [beams, V] -> twice as many as beams, so that enough go on when some end."""
        sums = (log_probs + torch.tensor([beam.cum_log_prob for beam in self.running])[:, None]).reshape(-1)
        best = sums.topk(min(2 * self._rules.width, len(sums)))
        candidates = []
        for rank, (total, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            parent, token_id = divmod(index, log_probs.shape[1])
            beam = self.running[parent]
            kept = (*beam.logits, logits[parent]) if self._request.returns.generation_logits else ()
            token_ids = (*beam.token_ids, token_id)
            longer = Beam(token_ids, total, (*beam.log_probs, float(log_probs[parent, token_id])), logits=kept)
            candidates.append(_Candidate(longer, rank, self._has_ended(token_ids)))
        return candidates

    def _has_ended(self, token_ids: tuple[int, ...]) -> bool:
        request = self._request
        whole = (*request.prompt_ids, *token_ids)
        return (
            token_ids[-1] == request.end_id
            or len(token_ids) >= request.max_new_tokens
            or ends_with_word(whole, len(token_ids), request.stop_words)
        )

    def _finish(self, ended: list[Beam]) -> None:
        """Keep the best `width` finished beams; none is added once the search is settled."""
        is_full = len(self._finished) >= self._rules.width
        if not self._can_improve or (is_full and self._rules.early_stopping):
            return
        scored = [beam.scored(self._length_weight(len(beam.token_ids))) for beam in ended]
        ranked = sorted([*self._finished, *scored], key=lambda beam: -beam.score)  # stable: the earlier of equals
        self._finished = ranked[: self._rules.width]

    def _is_settled(self) -> bool:
        """Whether no running beam can, by transformers' estimate, still displace a finished one."""
        if len(self._finished) < self._rules.width:
            return False
        best_running = self.running[0].cum_log_prob / self._length_weight(self._num_steps)
        self._can_improve = self._can_improve and best_running > self._finished[-1].score
        return self._rules.early_stopping or not self._can_improve

    def _length_weight(self, num_tokens: int) -> float:
        return float(np.float64(num_tokens) ** self._rules.length_penalty)
