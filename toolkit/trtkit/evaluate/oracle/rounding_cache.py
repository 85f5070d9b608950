"""The oracle with a cache that rounds keys and values as a deployment's does: how far does that alone move its state?

Own arithmetic, none of the engine's: what it says bounds what the engine may do.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trtkit.evaluate.oracle.oracle import Oracle

MAX_SEQUENCES = 12
_E4M3_MAX, _INT8_MAX, _INT4_STEPS, _INT4_GROUP = 448.0, 127.0, 15, 32


def round_trip(values: Tensor, kind: str) -> Tensor:
    """What comes back from the cache.  values [B, H, T, D]

    fp8 is e4m3, int8 whole numbers up to 127, both with one scale that maps the largest value of the layer to the
    largest code; int4 has a step and a zero for every 32 channels of a token.
    """
    if kind == "int4":
        groups = values.reshape(*values.shape[:-1], -1, min(_INT4_GROUP, values.shape[-1]))
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        step = ((high - low) / _INT4_STEPS).clamp(min=torch.finfo(values.dtype).tiny)
        return (((groups - low) / step).round() * step + low).reshape(values.shape)
    largest = _E4M3_MAX if kind == "fp8" else _INT8_MAX
    scale = values.abs().amax().clamp(min=torch.finfo(values.dtype).tiny) / largest
    if kind == "int8":
        return (values / scale).round().mul(scale)
    return (values / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).to(values.dtype) * scale


class RoundingCache(DynamicCache):
    """transformers' cache, which gives back what a coarser one would."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._round: Callable[[Tensor], Tensor] = lambda values: round_trip(values, kind)

    def update(self, key_states: Tensor, value_states: Tensor, *rest: Any, **named: Any) -> Any:
        """Store and return all of a layer."""
        return super().update(self._round(key_states), self._round(value_states), *rest, **named)


def measure_kv_error(oracle: Oracle, sequences: Sequence[tuple[Sequence[int], int]], kind: str) -> float:
    """Root-mean-square relative distance of the oracle's last states with and without the rounding.

    sequences: (token ids, how many of the last ones count). The first token of a text attends to itself alone, and its
    state moves far more than any other's; it is no part of an answer.
    """
    squares: list[float] = []
    for token_ids, num_last in sequences[:MAX_SEQUENCES]:
        exact = oracle.states(token_ids)[-num_last:]
        moved = oracle.states(token_ids, RoundingCache(kind))[-num_last:]
        squares += ((moved - exact).square().sum(dim=1) / exact.square().sum(dim=1)).tolist()
    return float(f"{math.sqrt(math.fsum(squares) / len(squares)):.4g}") if squares else 0.0
