"""Exact speculative sampling: keep a drafted token or replace it. Pure arithmetic on probabilities; knows no sequence.

Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding", algorithm 1) and Chen et al. 2023
("Accelerating Large Language Model Decoding with Speculative Sampling"). A token x that was drawn from q is kept with
the chance min(1, p(x) / q(x)), and replaced by one drawn from the residual max(0, p - q) otherwise; then it follows p,
whatever q is. q must be what the draft really drew from, cuts and penalties included, and the two random numbers here
must be independent of the one that drew x.

S rows in front, of any shape, V vocab_size.
"""

import torch
from torch import Tensor

from trtkit.reference.sampling.sampler import invert


def accepts(target: Tensor, draft: Tensor, token_ids: Tensor, noise: Tensor | float) -> Tensor:
    """Which drafted tokens stay.

    target, draft     [..., V] p and q, float64
    token_ids, noise  [...]
    returns           [...] bool
    """
    p, q = _of_token(target, token_ids), _of_token(draft, token_ids)
    return noise * q < p


def reaches(target: Tensor, draft: Tensor, token_ids: Tensor, threshold: float) -> Tensor:
    """Which drafted tokens have p / q >= threshold: TensorRT-LLM's draft_acceptance_threshold, which is not exact."""
    return _of_token(target, token_ids) >= threshold * _of_token(draft, token_ids)


def recover(target: Tensor, draft: Tensor, noise: Tensor | float) -> Tensor:
    """The token in place of one that was not kept.

    target, draft  [..., V] p and q, float64
    returns        [...] int64
    """
    residual = (target - draft).clamp_(min=0)
    # Where p equals q up to rounding nothing is left, and nothing was to be rejected.
    is_empty = residual.sum(-1, keepdim=True) <= 0
    return invert(torch.where(is_empty, target, residual), noise)


def _of_token(probs: Tensor, token_ids: Tensor) -> Tensor:
    return probs.gather(-1, token_ids[..., None])[..., 0]
