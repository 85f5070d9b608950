"""One row of logits becomes one token id. Knows penalties, cuts and draws; knows no sequences."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trtkit.reference.sampling.params import SamplingParams


@dataclass(frozen=True)
class Draw:
    """What one choice depends on besides the logits.

    counts: how often each token occurred in prompt and answer so far. forbidden_id is never chosen. noise is the
    uniform random number of this position.
    """

    params: SamplingParams
    counts: Mapping[int, int]
    noise: float
    forbidden_id: int | None = None


def choose(logits: Tensor, draw: Draw) -> int:
    """The token for one row.

    V vocab_size.
        logits  [V] float32, finite; not changed
    """
    params = draw.params
    scores = penalize(logits, draw)
    if params.is_greedy:
        return int(scores.argmax())
    if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
        return _invert(torch.softmax(scores, dim=0), draw.noise)
    num_kept = min(params.top_k, len(scores)) if params.top_k else len(scores)
    kept_scores, kept_ids = torch.topk(scores, num_kept)
    probs = cut(torch.softmax(kept_scores, dim=0), params.top_p, params.min_p)
    return int(kept_ids[_invert(probs, draw.noise)])


def penalize(logits: Tensor, draw: Draw) -> Tensor:
    """Temperature, then the repetition, presence and frequency penalties, then the forbidden token.

    The order, the division of positive and multiplication of negative logits, and counting the prompt too are
    TensorRT-LLM's (cpp/tensorrt_llm/kernels/penaltyKernels.cu, batchApplyPenalty).

    V vocab_size.
        logits   [V] float32
        returns  [V] float32, a new tensor
    """
    params = draw.params
    scores = logits / params.temperature if params.temperature not in (0, 1) else logits.clone()
    if params.has_penalties and draw.counts:
        ids = torch.tensor(list(draw.counts), device=logits.device)
        counts = torch.tensor(list(draw.counts.values()), dtype=scores.dtype, device=logits.device)
        seen = scores[ids]
        seen = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)
        scores[ids] = seen - params.presence_penalty - params.frequency_penalty * counts
    if draw.forbidden_id is not None:
        scores[draw.forbidden_id] = -torch.inf
    return scores


def cut(probs: Tensor, top_p: float, min_p: float) -> Tensor:
    """Zero what top-p and min-p exclude; the most likely token always stays.

    Top-p keeps the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al. 2020),
    min-p what has at least min_p times the highest probability (Nguyen et al. 2024).

    C candidates.
        probs    [C] falling, sum 1
        returns  [C] not normalised
    """
    before = probs.cumsum(0) - probs
    kept = (before < top_p) & (probs >= min_p * probs[0])
    kept[0] = True
    return torch.where(kept, probs, 0.0)


def _invert(probs: Tensor, noise: float) -> int:
    """The index at which the cumulative sum of `probs` [C], which need not sum to 1, passes noise x total."""
    cumulative = probs.double().cumsum(0)
    index = torch.searchsorted(cumulative, noise * cumulative[-1], right=True)
    return int(index.clamp_(max=len(probs) - 1))
