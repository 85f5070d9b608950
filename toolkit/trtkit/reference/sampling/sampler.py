"""Scores become probabilities and a token id. Knows cuts and draws; knows no sequences and where no score is from.

Every function takes any number of rows in front: [..., V] means one row or many under the same SamplingParams.
"""

import torch
from torch import Tensor

from trtkit.reference.sampling.params import SamplingParams


def choose(scores: Tensor, params: SamplingParams, noise: Tensor | float) -> Tensor:
    """The tokens that uniform random numbers pick.

    V vocab_size.
        scores   [..., V] float32
        noise    [...] in [0, 1)
        returns  [...] int64
    """
    if params.is_greedy:
        return scores.argmax(dim=-1)
    probs, ids = _candidates(scores, params)
    index = invert(probs, noise)
    return index if ids is None else ids.gather(-1, index[..., None])[..., 0]


def probabilities(scores: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that `choose` draws from.

    V vocab_size.
        scores   [..., V] float32
        returns  [..., V] float64, sum 1
    """
    if params.is_greedy:
        one = scores.new_ones((), dtype=torch.float64).expand(*scores.shape[:-1], 1)
        return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, scores.argmax(-1, keepdim=True), one)
    probs, ids = _candidates(scores, params)
    whole = probs.double()
    if ids is not None:
        whole = torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, ids, whole)
    return whole / whole.sum(-1, keepdim=True)


def cut(probs: Tensor, top_p: float, min_p: float) -> Tensor:
    """Zero what top-p and min-p exclude; the most likely token always stays.

    Top-p keeps the smallest set of most likely tokens whose probability reaches top_p (Holtzman et al. 2020),
    min-p what has at least min_p times the highest probability (Nguyen et al. 2024).

    C candidates.
        probs    [..., C] falling, sum 1
        returns  [..., C] not normalised
    """
    before = probs.cumsum(-1) - probs
    kept = (before < top_p) & (probs >= min_p * probs[..., :1])
    kept[..., 0] = True
    return torch.where(kept, probs, 0.0)


def invert(weights: Tensor, noise: Tensor | float) -> Tensor:
    """The index at which the cumulative sum of weights passes noise x total; never one of weight zero.

    C candidates.
        weights  [..., C], not all zero; they need not sum to 1
        noise    [...] in [0, 1)
        returns  [...] int64
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1]
    passed = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, passed[..., None].contiguous(), right=True)[..., 0]


def _candidates(scores: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor | None]:
    """(weights [..., C], their token ids [..., C], or None where they are all tokens in order)."""
    if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
        return torch.softmax(scores, dim=-1), None
    num_kept = min(params.top_k, scores.shape[-1]) if params.top_k else scores.shape[-1]
    kept_scores, kept_ids = torch.topk(scores, num_kept)
    return cut(torch.softmax(kept_scores, dim=-1), params.top_p, params.min_p), kept_ids
