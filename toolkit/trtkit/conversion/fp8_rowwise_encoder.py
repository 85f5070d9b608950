"""FP8 with one scale per output row: Meta's recipe for the MLPs of Llama 3.1. Knows no layers, the caller chooses them.

w ~= q * per_channel_scale, scale = max(max |row| / 448, 1 / (448 * 512)), float32 [outputs]; activations are quantised
per token at run time, so nothing is calibrated.
"""

from collections.abc import Sequence

import numpy as np

from trtkit.conversion.casting import E4M3_MAX, to_e4m3
from trtkit.conversion.encoder import Sinks
from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import TensorHeader
from trtkit.conversion.target_values import TargetValues

_SMALLEST_SCALE = np.float32(1.0 / (E4M3_MAX * 512.0))
_ROWS_AT_ONCE = 256


class Fp8RowwiseEncoder:
    """Quantises each rank's part on its own."""

    def __init__(self, values: TargetValues) -> None:
        self._values = values

    def headers(self, target: Target) -> list[TensorHeader]:
        """`weight` and `per_channel_scale`."""
        scale_name = target.name.removesuffix("weight") + "per_channel_scale"
        return [
            TensorHeader(target.name, "float8_e4m3fn", target.shape),
            TensorHeader(scale_name, "float32", target.shape[:-1]),
        ]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the weights run by run of rows, then the scales."""
        for target, sink in zip(targets, sinks, strict=True):
            if sink is None:
                continue
            scales = []
            for matrix in self._values.matrices(target):
                largest = np.abs(matrix).max(axis=1)
                scale = np.maximum(largest / np.float32(E4M3_MAX), _SMALLEST_SCALE).astype(np.float32)
                for first in range(0, len(matrix), _ROWS_AT_ONCE):
                    rows = slice(first, first + _ROWS_AT_ONCE)
                    with np.errstate(invalid="ignore"):  # Inf / Inf; noted where it is read
                        sink.append(to_e4m3(matrix[rows] / scale[rows, None]))
                scales.append(scale)
            sink.append(np.concatenate(scales))
