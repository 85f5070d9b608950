"""What a quantisation makes of matrices and of what enters them: the formats' rounding, and where it applies.

Own arithmetic, none of the converter's: what it says bounds what the conversion may do.
"""

from collections.abc import Callable, Iterator
from typing import get_args

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trtkit.config.schema import Quantization

QUANTIZATIONS: tuple[str, ...] = tuple(name for name in get_args(Quantization) if name != "none")
_E4M3_MAX, _AWQ_GROUP, _FP4_BLOCK = 448.0, 128, 16
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NOT_QUANTIZED = ("gate", "router", "shared_expert_gate")  # what chooses experts


def round_weights(weights: Tensor, quantization: str) -> Tensor:
    """What comes back of a matrix.  weights [..., outputs, inputs]

    FP8 is e4m3 with a scale for the matrix, or for each output; INT8 and INT4 have a scale for each output, AWQ for
    128 inputs of it (the search for better scales is left out), NVFP4 for 16.
    """
    whole = tuple(range(weights.ndim))
    if quantization == "fp8":
        return _to_e4m3(weights, whole)
    if quantization == "fp8_rowwise":
        return _to_e4m3(weights, (-1,))
    if quantization == "nvfp4":
        return _in_groups(weights, _FP4_BLOCK, _to_fp4)
    if quantization in ("int4_awq", "w4a8_awq"):
        return _in_groups(weights, _AWQ_GROUP, lambda groups: _to_integers(groups, 8))
    return _to_integers(weights, 8 if quantization == "int4_weight_only" else 128)


def round_inputs(inputs: Tensor, quantization: str) -> Tensor:
    """What enters a matrix: as it is where weights alone are quantised.  inputs [..., channels]

    FP8 takes one scale for all, or for each token; INT8 one for all.
    """
    whole = tuple(range(inputs.ndim))
    if quantization in ("fp8", "w4a8_awq"):
        return _to_e4m3(inputs, whole)
    if quantization == "fp8_rowwise":
        return _to_e4m3(inputs, (-1,))
    if quantization == "nvfp4":
        return _in_groups(inputs, _FP4_BLOCK, _to_fp4)
    if quantization == "int8_smoothquant":
        scale = inputs.abs().amax().clamp(min=smallest(inputs)) / 127
        return (inputs / scale).round() * scale
    return inputs


def store_rounded(body: nn.Module, quantization: str) -> None:
    """Round every matrix of the decoder layers in place, by its float32 values."""
    for module in quantized_modules(body):
        for _, matrix in matrices_of(module):
            rounded = round_weights(upright(module, matrix.data.float()), quantization)
            matrix.data.copy_(upright(module, rounded))


def upright(module: nn.Module, matrix: Tensor) -> Tensor:
    """One of the module's matrices as [..., outputs, inputs], or back: GPT-2's are stored the other way round."""
    return matrix.T if isinstance(module, Conv1D) else matrix


def quantized_modules(body: nn.Module) -> Iterator[nn.Module]:
    """Those with matrices, but for embeddings and routers; norms have none, and the head is no part of the body."""
    for name, module in body.named_modules():
        chooses = name.rpartition(".")[2] in _NOT_QUANTIZED
        if not chooses and not isinstance(module, nn.Embedding) and any(True for _ in matrices_of(module)):
            yield module


def matrices_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The module's own matrices, stacks of experts included."""
    return [(name, value) for name, value in module._parameters.items() if value is not None and value.ndim >= 2]


def _to_e4m3(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    scale = values.abs().amax(dims, keepdim=True).clamp(min=smallest(values)) / _E4M3_MAX
    return (values / scale).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).to(values.dtype) * scale


def _to_integers(values: Tensor, levels: int) -> Tensor:
    """Whole steps of the largest value of a row over `levels`, from -levels to levels - 1."""
    step = values.abs().amax(-1, keepdim=True).clamp(min=smallest(values)) / levels
    return (values / step).round().clamp(-levels, levels - 1) * step


def _to_fp4(values: Tensor) -> Tensor:
    """The nearest of e2m1's values, with one scale for a row."""
    scale = values.abs().amax(-1, keepdim=True).clamp(min=smallest(values)) / _FP4_VALUES[-1]
    table = torch.tensor(_FP4_VALUES, dtype=values.dtype, device=values.device)
    between = (table[1:] + table[:-1]) / 2
    return table[torch.bucketize((values / scale).abs().contiguous(), between)] * values.sign() * scale


def _in_groups(values: Tensor, size: int, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    """Round runs of `size` neighbours along the last axis, or the whole of it where it is no multiple."""
    size = size if values.shape[-1] % size == 0 else values.shape[-1]
    return rounding(values.reshape(*values.shape[:-1], -1, size)).reshape(values.shape)


def smallest(values: Tensor) -> float:
    """The least normal number of the dtype; a scale is at least that."""
    return torch.finfo(values.dtype).tiny
