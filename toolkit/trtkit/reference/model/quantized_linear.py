"""LinearWeights become functions: inputs rounded to codes, codes multiplied, the product scaled. Knows no formats.

The product of codes runs through the same kernels as any other layer, in the model's dtype, which holds codes exactly
(float32 for float16). Its sum is accumulated in float32, rounded to that dtype, scaled in float32 and rounded again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trtkit.reference.model.linear import Linear, make_linear
from trtkit.reference.model.linear_weight import LinearWeight


def make_layer(weights: Sequence[LinearWeight], bias: Tensor | None, *, packed: bool) -> Linear:
    """The layer of one weight, or of several whose inputs lie side by side and whose outputs add up.

    N rows, I inputs, O outputs.
        bias  [O]
        x     [N, I]
        y     [N, O]
    """
    if len(weights) == 1:
        return _make_one(weights[0], bias, packed=packed)
    sizes = [weight.weight.shape[1] for weight in weights]
    layers = [_make_one(weight, bias if i == 0 else None, packed=packed) for i, weight in enumerate(weights)]

    def run(x: Tensor) -> Tensor:
        pieces = zip(layers, torch.split(x, sizes, dim=1), strict=True)
        return torch.stack([layer(piece.contiguous()) for layer, piece in pieces]).sum(0)

    return run


def side_by_side(layers: Sequence[Linear]) -> Linear:
    """Layers of one input whose outputs follow each other."""
    return lambda x: torch.cat([layer(x) for layer in layers], dim=1)


def _make_one(weight: LinearWeight, bias: Tensor | None, *, packed: bool) -> Linear:
    if weight.rounding is None:
        return _with_pre_scale(weight.pre_scale, make_linear(weight.weight, bias, packed=packed))
    product, rounding, scale = make_linear(weight.weight, None, packed=packed), weight.rounding, weight.scale
    dtype = weight.weight.dtype
    wide_bias = None if bias is None else bias.float()

    def run(x: Tensor) -> Tensor:
        codes, row_scale = rounding(x)
        y = product(codes.to(dtype)).float()
        y = y if scale is None else y.mul_(scale) if row_scale is None else y.mul_(scale).mul_(row_scale)
        return (y if wide_bias is None else y.add_(wide_bias)).to(x.dtype)

    return _with_pre_scale(weight.pre_scale, run)


def _with_pre_scale(pre_scale: Tensor | None, layer: Linear) -> Linear:
    return layer if pre_scale is None else lambda x: layer(x * pre_scale)
