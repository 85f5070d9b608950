"""The tensors of one linear layer on one rank become a LinearWeight. Knows storage formats, no ranks and no kernels.

Formats with rounded inputs keep their codes; formats that only shrink weights are widened here once, as their kernels
do in registers: integer times scale, rounded to the model's dtype.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trtkit.checkpoints.weight_only_layout import Bits, layout_arch, unpack_weight_only
from trtkit.reference.model.config import QuantConfig
from trtkit.reference.model.linear_weight import LinearWeight
from trtkit.reference.model.rounding import E4M3_MAX, Fp4PerBlock, Fp8PerTensor, Fp8PerToken, Int8PerTensor, decode_e2m1

ENDINGS = (
    "weight",
    "per_channel_scale",
    "weights_scaling_factor",
    "weights_scaling_factor_2",
    "activation_scaling_factor",
    "prequant_scaling_factor",
)
# What a tensor that is not quantised is stored in.
PLAIN_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SCALES = ("per_channel_scale", "weights_scaling_factor")


class Stored(NamedTuple):
    """tensors by ending, of one matrix; dtype is the model's. is_expert: it stood in a stack of experts."""

    tensors: Mapping[str, Tensor]
    quantization: QuantConfig
    dtype: torch.dtype
    is_expert: bool = False

    @property
    def codes_dtype(self) -> torch.dtype:
        """What codes are multiplied in. Sums of products of codes overflow float16 before they are scaled."""
        return torch.float32 if self.dtype == torch.float16 else self.dtype

    def scalar(self, ending: str) -> float:
        """A tensor of one element."""
        return float(self.tensors[ending])


def decode(stored: Stored) -> LinearWeight:
    """The layer, in the format of the checkpoint's algorithm, or plain when it has no scale (excluded modules).

    Raises KeyError with the ending of a tensor that the format needs and that is not there, ValueError when codes have
    no scale or no algorithm, or when the order of packed integers is not known.
    """
    algorithm, weight = stored.quantization.algorithm, stored.tensors["weight"]
    scales = [scale for scale in _SCALES if scale in stored.tensors]
    if algorithm is not None and scales:
        return _FORMATS[algorithm](stored)
    if scales or weight.dtype not in PLAIN_DTYPES:
        lacking = "config.json names no quant_algo" if scales else "it has no scale"
        raise ValueError(f"it is stored as {str(weight.dtype).removeprefix('torch.')}, and {lacking}")
    return LinearWeight(weight.to(stored.dtype))


def _fp8(stored: Stored) -> LinearWeight:
    """w = e4m3 * weights_scaling_factor, x = e4m3 * activation_scaling_factor, one of each for the matrix."""
    codes, input_scale = _e4m3_codes(stored.tensors["weight"]), stored.scalar("activation_scaling_factor")
    scale = stored.tensors["weights_scaling_factor"].float() * input_scale
    return LinearWeight(codes.to(stored.codes_dtype), scale.expand(len(codes)), rounding=Fp8PerTensor(input_scale))


def _fp8_rowwise(stored: Stored) -> LinearWeight:
    """w = e4m3 * per_channel_scale, one per output; inputs are scaled token by token."""
    codes, scale = _e4m3_codes(stored.tensors["weight"]), stored.tensors["per_channel_scale"].float()
    return LinearWeight(codes.to(stored.codes_dtype), scale.flatten(), rounding=Fp8PerToken(stored.quantization.clamp))


def _int8_weight_only(stored: Stored) -> LinearWeight:
    return _weight_only(stored, 8)


def _int4_weight_only(stored: Stored) -> LinearWeight:
    return _weight_only(stored, 4)


def _weight_only(stored: Stored, bits: Bits) -> LinearWeight:
    """w = integer * per_channel_scale; the integers lie [inputs, outputs] in the order of a GPU's kernels."""
    arch = stored.quantization.weight_only_arch
    if arch is None:
        raise ValueError("conversion.json, which says for which GPU the integers are ordered, is missing")
    order = layout_arch(arch, experts=stored.is_expert)
    integers = torch.from_numpy(unpack_weight_only(stored.tensors["weight"].numpy(), bits, order)).T
    scale = stored.tensors["per_channel_scale"].to(stored.dtype)
    return LinearWeight((integers.to(stored.dtype) * scale[:, None]).contiguous())


def _int4_awq(stored: Stored) -> LinearWeight:
    """w = integer * weights_scaling_factor of its group of inputs; x is multiplied by prequant_scaling_factor."""
    scale = stored.tensors["weights_scaling_factor"].to(stored.dtype)
    return LinearWeight(_grouped(stored, scale), pre_scale=_pre_scale(stored))


def _w4a8_awq(stored: Stored) -> LinearWeight:
    """The values of INT4-AWQ, rounded to e4m3 * weights_scaling_factor_2; inputs are e4m3 too."""
    outer, input_scale = stored.scalar("weights_scaling_factor_2"), stored.scalar("activation_scaling_factor")
    values = _grouped(stored, stored.tensors["weights_scaling_factor"].float()) / outer
    codes = values.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(stored.codes_dtype)
    scale = torch.full((len(codes),), outer * input_scale)
    return LinearWeight(codes, scale, _pre_scale(stored), Fp8PerTensor(input_scale))


def _smoothquant(stored: Stored) -> LinearWeight:
    """w = integer * weights_scaling_factor, one per output; x * prequant_scaling_factor = integer * input scale."""
    input_scale = stored.scalar("activation_scaling_factor")
    scale = stored.tensors["weights_scaling_factor"].float().flatten() * input_scale
    codes = stored.tensors["weight"].to(stored.codes_dtype)
    return LinearWeight(codes, scale, _pre_scale(stored), Int8PerTensor(input_scale))


def _nvfp4(stored: Stored) -> LinearWeight:
    """w = e2m1 * e4m3 block scale * weights_scaling_factor_2, inputs alike; even inputs lie in the low half byte."""
    outer, input_scale = stored.scalar("weights_scaling_factor_2"), stored.scalar("activation_scaling_factor")
    values = decode_e2m1(_nibbles(stored.tensors["weight"]).flatten(1))
    codes = _by_group(values, stored.tensors["weights_scaling_factor"].float()).to(stored.codes_dtype)
    scale = torch.full((len(codes),), outer * input_scale)
    return LinearWeight(codes, scale, rounding=Fp4PerBlock(input_scale))


def _pre_scale(stored: Stored) -> Tensor | None:
    factor = stored.tensors.get("prequant_scaling_factor")
    return None if factor is None else factor.to(stored.dtype)


def _e4m3_codes(weight: Tensor) -> Tensor:
    """FP8 weights may be stored as the bits of int8."""
    return weight.view(torch.float8_e4m3fn) if weight.dtype == torch.int8 else weight


def _grouped(stored: Stored, scale: Tensor) -> Tensor:
    """Signed 4-bit integers times the scale of their group; even outputs lie in the low half byte.

    weight [O / 2, I] int8, scale [O, I / group] -> [O, I] in the dtype of the scale
    """
    nibbles = _nibbles(stored.tensors["weight"]).movedim(-1, 1).flatten(0, 1).to(torch.int8)
    signed = nibbles - (nibbles > 7).to(torch.int8) * 16
    return _by_group(signed.to(scale.dtype), scale)


def _by_group(values: Tensor, scale: Tensor) -> Tensor:
    """[O, I] times [O, I / group]"""
    return (values.view(*scale.shape, -1) * scale[..., None]).flatten(1)


def _nibbles(packed: Tensor) -> Tensor:
    """The low and the high half of every byte. [..., 2] uint8"""
    data = packed.view(torch.uint8)
    return torch.stack([data & 15, data >> 4], dim=-1)


_FORMATS: dict[str, Callable[[Stored], LinearWeight]] = {
    "FP8": _fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rowwise,
    "W8A16": _int8_weight_only,
    "W4A16": _int4_weight_only,
    "W4A16_AWQ": _int4_awq,
    "W4A8_AWQ": _w4a8_awq,
    "W8A8_SQ_PER_CHANNEL": _smoothquant,
    "NVFP4": _nvfp4,
}
