"""INT8 and INT4 weight-only: integers, one scale per output channel. Knows the rounding, not the kernels' byte order.

w ~= q * scale, scale = max |row| / 128 (INT4: / 8), q = w / scale rounded half away from zero and clamped to
-128 .. 127 (-8 .. 7). The division uses the float32 scale; the stored one is cast afterwards.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.weight_only_layout import TILE_ROWS, Bits, layout_arch, pack_weight_only
from trtkit.conversion.casting import from_float32
from trtkit.conversion.encoder import Sinks
from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import TensorHeader
from trtkit.conversion.target_values import TargetValues
from trtkit.errors import CheckpointError

_ROWS_AT_ONCE = 512


class WeightOnlyEncoder:
    """Quantises each rank's part on its own, as TensorRT-LLM's converter does."""

    def __init__(self, values: TargetValues, dtype: str, bits: Bits, arch: int) -> None:
        self._values = values
        self._dtype = dtype
        self._bits: Bits = bits
        self._arch = arch

    def headers(self, target: Target) -> list[TensorHeader]:
        """`weight`, int8 [..., inputs, outputs] (INT4: outputs / 2), and `per_channel_scale` [..., outputs].

        Raises CheckpointError CONV-TILES when the rank's part is not made of the kernels' tiles.
        """
        *experts, outputs, inputs = target.shape
        if outputs % TILE_ROWS or inputs % TILE_ROWS:
            raise CheckpointError(
                f"{target.name} is {outputs} x {inputs} per rank; weight-only kernels need multiples of {TILE_ROWS}",
                "use a smaller tensor_parallel, or another quantization",
                code="CONV-TILES",
                where=target.slices[0].source,
            )
        scale_name = target.name.removesuffix("weight") + "per_channel_scale"
        return [
            TensorHeader(target.name, "int8", (*experts, inputs, outputs * self._bits // 8)),
            TensorHeader(scale_name, self._dtype, (*experts, outputs)),
        ]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the packed integers and the scales; experts are packed one by one."""
        for target, sink in zip(targets, sinks, strict=True):
            if sink is None:
                continue
            scales = []
            arch = layout_arch(self._arch, experts=target.stacked > 0)
            for matrix in self._values.matrices(target):
                integers, scale = quantize_rows(matrix, self._bits)
                sink.append(pack_weight_only(integers.T, self._bits, arch))
                scales.append(from_float32(scale, self._dtype))
            sink.append(np.concatenate(scales))


def quantize_rows(matrix: NDArray[Any], bits: Bits) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """[outputs, inputs] float32 -> integers of that shape and the float32 scales [outputs]. A zero row stays zero."""
    top = np.float32(1 << (bits - 1))
    scale = (np.abs(matrix).max(axis=1) / top).astype(np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    integers = np.empty(matrix.shape, dtype=np.int8)
    for first in range(0, len(matrix), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        # NaN and Inf have no integer; where they are read they are noted, and a finding names the tensor.
        with np.errstate(invalid="ignore"):
            quotient = matrix[rows] / divisor[rows, None]
            away = np.trunc(quotient + np.copysign(np.float32(0.5), quotient))
            integers[rows] = np.clip(away, -top, top - 1)
    return integers, scale
