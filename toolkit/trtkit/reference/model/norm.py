"""Norms of the residual stream and of what is added to it. Knows no model."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

Norm = Callable[[Tensor], Tensor]


def make_norm(kind: Literal["rms", "layer"], weight: Tensor, bias: Tensor | None, eps: float) -> Norm:
    """x / sqrt(mean(x^2) + eps) * weight, or LayerNorm with its bias. Statistics in float32.

    E hidden_size.
        weight, bias  [E]
    """
    shape = tuple(weight.shape)
    if kind == "rms":
        return lambda x: functional.rms_norm(x, shape, weight, eps)
    return lambda x: functional.layer_norm(x, shape, weight, bias, eps)
