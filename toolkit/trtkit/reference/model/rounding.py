"""How the inputs of quantised linear layers are rounded, as a deployment rounds them. Knows formats, no weights.

A rounding makes codes: x ~= codes * scale, where the scale is the layer's (folded into its output) or the row's own.
Codes are returned in the dtype of x, which holds every one of them exactly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
FP4_BLOCK = 16
# The smallest scale of a row (TensorRT-LLM's per-token quantisation).
_SMALLEST_SCALE = 1.0 / (E4M3_MAX * 512.0)
# Where the nearest code of E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6) changes; a tie goes to the code with the even mantissa,
# which is the upper one at every second of them.
_E2M1_CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_TIES_DOWN = (0.25, 1.25, 2.5, 5.0)
_E2M1_TIES_UP = (0.75, 1.75, 3.5)


class Rounded(NamedTuple):
    """N rows, I inputs.

    codes      [N, I] in the dtype of the input
    row_scale  [N, 1] float32, or None when the layer has one for all rows
    """

    codes: Tensor
    row_scale: Tensor | None


@dataclass(frozen=True)
class Fp8PerTensor:
    """codes = e4m3(x / scale), saturating; scale was measured by a calibration."""

    scale: float

    def __call__(self, x: Tensor) -> Rounded:
        return Rounded(_e4m3(x.float() / self.scale).to(x.dtype), None)


@dataclass(frozen=True)
class Fp8PerToken:
    """codes = e4m3(x / scale), scale = max |x| / 448 of the row, after clamping x."""

    clamp: tuple[float, float] | None

    def __call__(self, x: Tensor) -> Rounded:
        wide = x.float() if self.clamp is None else x.float().clamp(*self.clamp)
        scale = (wide.abs().amax(1, keepdim=True) / E4M3_MAX).clamp_(min=_SMALLEST_SCALE)
        return Rounded(_e4m3(wide / scale).to(x.dtype), scale)


@dataclass(frozen=True)
class Int8PerTensor:
    """codes = round(x / scale), half to even, within -128 .. 127; scale was measured by a calibration."""

    scale: float

    def __call__(self, x: Tensor) -> Rounded:
        return Rounded((x.float() / self.scale).round_().clamp_(-128, 127).to(x.dtype), None)


@dataclass(frozen=True)
class Fp4PerBlock:
    """codes = e2m1(x / (block * scale)) * block, block = e4m3(max |x| / (6 * scale)) of every 16 neighbours (NVFP4)."""

    scale: float

    def __call__(self, x: Tensor) -> Rounded:
        blocks = x.float().view(len(x), -1, FP4_BLOCK)
        block_scale = _e4m3(blocks.abs().amax(2, keepdim=True) / (E2M1_MAX * self.scale))
        divisor = torch.where(block_scale > 0, block_scale * self.scale, 1.0)
        return Rounded((round_e2m1(blocks / divisor) * block_scale).view(x.shape).to(x.dtype), None)


Rounding = Fp8PerTensor | Fp8PerToken | Int8PerTensor | Fp4PerBlock


def round_e2m1(x: Tensor) -> Tensor:
    """The nearest E2M1 value of each element, saturating at 6."""
    magnitude = x.abs()
    code = sum((magnitude > tie).to(torch.int64) for tie in _E2M1_TIES_DOWN)
    code = sum(((magnitude >= tie).to(torch.int64) for tie in _E2M1_TIES_UP), start=code)
    return torch.tensor(_E2M1_CODES, device=x.device)[code].copysign(x)


def decode_e2m1(nibbles: Tensor) -> Tensor:
    """The values of 4-bit codes 0 .. 15: a sign and an index. float32"""
    magnitude = torch.tensor(_E2M1_CODES, device=nibbles.device)[(nibbles & 7).to(torch.int64)]
    return torch.where(nibbles >= 8, -magnitude, magnitude)


def _e4m3(x: Tensor) -> Tensor:
    """The nearest e4m3 value of each element, saturating, since the format has no infinity. float32"""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
