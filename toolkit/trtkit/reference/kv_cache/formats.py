"""How keys and values are stored: the model's dtype, FP8, INT8, INT4. Knows codes and scales, no rows' owners.

A format stores each row in one or more planes, and computes a row's codes from that row alone, so that what is read
back does not depend on what was written with it.

N rows, H num_kv_heads, D head_dim.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trtkit.reference.kv_cache.options import INT4_GROUP

E4M3_MAX, INT8_MAX, INT4_MAX = 448.0, 127.0, 15.0
# A bfloat16 with the bits of an e4m3 number in place is that number times 2^-120: exponent biases 127 and 7.
_E4M3_SHIFT = 2.0**120
_SAFE_SCALE = 2.0**7  # times the shift, and the like, a float32 holds it
_E4M3_BITS = 0x87F0 - 0x10000


class Scale(NamedTuple):
    """What the codes of one layer's keys and values are multiplied by: x ~= code * scale."""

    key: float
    value: float


class Plane(NamedTuple):
    """A tensor [L, rows, width] of one dtype."""

    width: int
    dtype: torch.dtype


class Format(Protocol):
    """Rows of keys and values to planes and back."""

    @property
    def planes(self) -> Sequence[Plane]:
        """What a row is stored in."""
        ...

    def encode(self, layer: int, key_values: Tensor) -> Sequence[Tensor]:
        """[N, 2 * H * D] of the model's dtype -> [N, width] of every plane."""
        ...

    def decode(self, layer: int, parts: Sequence[Tensor]) -> Tensor:
        """[N, width] of every plane -> [N, 2, H, D] of the model's dtype."""
        ...


class Fp8:
    """code = e4m3(x / scale), one scale for a layer's keys, one for its values. Saturates: e4m3fn has no infinity.

    Rounding is to nearest even. A NaN becomes 480 * scale; the logits of its row are NaN all the same.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, scales: Sequence[Scale], dtype: torch.dtype) -> None:
        self.planes = (Plane(2 * num_kv_heads * head_dim, torch.uint8),)
        self._shape = (2, num_kv_heads, head_dim)
        self._scales = [_broadcast(scale) for scale in scales]
        self._are_large = [max(scale) > _SAFE_SCALE for scale in scales]
        self._dtype = dtype

    def encode(self, layer: int, key_values: Tensor) -> Sequence[Tensor]:
        """One byte an element."""
        scaled = key_values.view(-1, *self._shape).float() / self._scales[layer].to(key_values.device)
        codes = scaled.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        return (codes.view(torch.uint8).flatten(1),)

    def decode(self, layer: int, parts: Sequence[Tensor]) -> Tensor:
        """The bits are moved to where bfloat16 has them, which is seven times as fast as PyTorch's conversion."""
        bits = parts[0].view(torch.int8).to(torch.int16).bitwise_left_shift_(4).bitwise_and_(_E4M3_BITS)
        values, shift = bits.view(torch.bfloat16).view(-1, *self._shape), _E4M3_SHIFT
        if self._are_large[layer]:
            values.mul_(shift)  # exact
            shift = 1.0
        return _times(values, self._scales[layer] * shift, self._dtype)


class Int8:
    """code = round(x / scale) in [-127, 127]; one scale for a layer's keys, one for its values."""

    def __init__(self, num_kv_heads: int, head_dim: int, scales: Sequence[Scale], dtype: torch.dtype) -> None:
        self.planes = (Plane(2 * num_kv_heads * head_dim, torch.int8),)
        self._shape = (2, num_kv_heads, head_dim)
        self._scales = [_broadcast(scale) for scale in scales]
        self._dtype = dtype

    def encode(self, layer: int, key_values: Tensor) -> Sequence[Tensor]:
        """One byte an element."""
        scaled = key_values.view(-1, *self._shape).float() / self._scales[layer].to(key_values.device)
        return (scaled.round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8).flatten(1),)

    def decode(self, layer: int, parts: Sequence[Tensor]) -> Tensor:
        """code * scale; the codes are exact in bfloat16."""
        return _times(parts[0].to(torch.bfloat16).view(-1, *self._shape), self._scales[layer], self._dtype)


class Int4:
    """x ~= code * step + zero, code in [0, 15], for every group of neighbouring channels of a head and token.

    zero is the smallest value of the group and step a fifteenth of its range, both float16. Two codes share a byte, the
    first of a group's half in its low bits, that of the second half in its high bits.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        group = min(INT4_GROUP, head_dim)
        if head_dim % group or group % 2:
            raise ValueError(f"head_dim {head_dim} is not a multiple of {group} channels")
        num_groups = 2 * num_kv_heads * head_dim // group
        self.planes = (
            Plane(num_groups * group // 2, torch.uint8),
            Plane(2 * num_groups, torch.float16),
        )
        self._group = group
        self._shape = (2, num_kv_heads, head_dim)
        self._dtype = dtype

    def encode(self, layer: int, key_values: Tensor) -> Sequence[Tensor]:
        """Half a byte an element, and four bytes a group."""
        groups = key_values.view(len(key_values), -1, self._group).float()
        low, high = groups.aminmax(dim=2, keepdim=True)
        zero, step = low.half(), ((high - low) / INT4_MAX).half()
        codes = ((groups - zero.float()) / step.float().clamp(min=torch.finfo(torch.float16).tiny)).round_()
        codes = codes.clamp_(0, INT4_MAX).to(torch.uint8)
        first, second = codes.chunk(2, dim=2)
        return (first | (second << 4)).flatten(1), torch.cat([step, zero], dim=2).flatten(1)

    def decode(self, layer: int, parts: Sequence[Tensor]) -> Tensor:
        """code * step + zero, in float32."""
        packed = parts[0].view(len(parts[0]), -1, self._group // 2)
        step, zero = parts[1].view(len(packed), -1, 2).float().chunk(2, dim=2)
        values = torch.cat([packed & 15, packed >> 4], dim=2).float().mul_(step).add_(zero)
        return values.to(self._dtype).view(-1, *self._shape)


def _broadcast(scale: Scale) -> Tensor:
    """[2, 1, 1] float32"""
    return torch.tensor([scale.key, scale.value])[:, None, None]


def _times(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """bfloat16 values [N, 2, H, D] that are exact, times [2, 1, 1], rounded once to the dtype."""
    scale = scale.to(values.device)
    return values.mul_(scale) if dtype == torch.bfloat16 else (values.float() * scale).to(dtype)
