"""Attention over a cache that keeps only some tokens: sinks, a window, and heavy hitters. Knows no cache and no layer.

It computes what a deployment with such a cache would, for a whole text at once: every token sees the tokens that would
still be there when it comes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

IMPLEMENTATION = "trtkit_bounded"
_BOUND = "trtkit_bound"


@dataclass(frozen=True)
class Bound:
    """What a layer keeps: the first sink_tokens, the window_tokens most recent ones, the token itself included, and
    between them the heavy_tokens that most attention went to so far (H2O, Zhang et al. 2023), for each KV head its own.
    """

    window_tokens: int
    sink_tokens: int = 0
    heavy_tokens: int = 0

    @property
    def budget_tokens(self) -> int:
        """Most tokens that are kept."""
        return self.sink_tokens + self.heavy_tokens + self.window_tokens


def register() -> None:
    """Make the implementation known to transformers, under IMPLEMENTATION. Harmless when it is."""
    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def set_bound(layer: nn.Module, bound: Bound | None) -> None:
    """Say what the attention of `layer` keeps from now on; None is everything."""
    for module in layer.modules():
        setattr(module, _BOUND, bound)


def probabilities(logits: Tensor, bound: Bound | None) -> Tensor:
    """H KV heads, G query heads of each, T tokens: logits [H, G, T, T], -inf where a token may not look."""
    if bound is None:
        return logits.softmax(-1)
    if not bound.heavy_tokens:
        return logits.masked_fill(~_window(logits.shape[-1], bound, logits.device), float("-inf")).softmax(-1)
    return _with_heavy_hitters(logits, bound)


def _window(num_tokens: int, bound: Bound, device: torch.device) -> Tensor:
    """[T, T]: whether the row's token still finds the column's token in sinks or window."""
    position = torch.arange(num_tokens, device=device)
    return (position < bound.sink_tokens) | (position > position[:, None] - bound.window_tokens)


def _with_heavy_hitters(logits: Tensor, bound: Bound) -> Tensor:
    """Token by token: attend to what is there, add up what each got, and let the least wanted of the old ones go."""
    num_heads, _, num_tokens, _ = logits.shape
    kept = _window(num_tokens, bound, logits.device)
    got = logits.new_zeros(num_heads, num_tokens)
    is_heavy = torch.zeros(num_heads, num_tokens, dtype=torch.bool, device=logits.device)
    rows = []
    for token in range(num_tokens):
        visible = is_heavy | kept[token]
        rows.append(logits[:, :, token].masked_fill(~visible[:, None], float("-inf")).softmax(-1))
        got += rows[-1].sum(1)
        leaving = token + 1 - bound.window_tokens
        if leaving >= bound.sink_tokens:
            is_heavy[:, leaving] = True
            if leaving - bound.sink_tokens >= bound.heavy_tokens:
                least = got.masked_fill(~is_heavy, float("inf")).argmin(-1, keepdim=True)
                is_heavy.scatter_(1, least, False)
    return torch.stack(rows, dim=2)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """One sample: query [1, H * G, T, D], key and value [1, H, T, D] -> [1, T, H * G, D], as transformers wants it."""
    num_heads, num_tokens, head_dim = key.shape[1:]
    scaling = options.get("scaling") or head_dim**-0.5
    grouped = query[0].view(num_heads, -1, num_tokens, head_dim)
    logits = (grouped @ key[0][:, None].transpose(2, 3)).float() * scaling
    softcap = options.get("softcap")
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if attention_mask is not None:
        logits = logits + attention_mask[0, :1, :num_tokens, :num_tokens].float()
    weights = probabilities(logits, getattr(module, _BOUND, None)).to(value.dtype)
    out = weights @ value[0][:, None]
    return out.flatten(0, 1).transpose(0, 1)[None].contiguous(), None
