"""How far a quantisation moves the residual stream of a model. Knows formats' steps, no model and no checkpoint."""

import math
from typing import NamedTuple

# Matrices of a layer, and different inputs among them: q, k, v and gate, up share one each.
_MATRICES, _INPUTS = 7, 4


class FormatError(NamedTuple):
    """Root-mean-square error of what a format stores, relative to its root mean square."""

    weights: float
    inputs: float


# Rounding to 3 mantissa bits errs by 0.425 * 2^-4 (see tolerance.MEAN_ROUNDING). An integer errs by step / sqrt(12);
# the step is the largest of a row over 128 (8 bits) or 8 (4 bits), of 128 neighbours over 7 (AWQ), or of a tensor over
# 127 (inputs of SmoothQuant), and the largest is about 3.5, 3.5, 2.7 and 15 times the root mean square. Four-bit floats
# in blocks of 16 were measured.
_FP8 = 0.425 * 2**-4
_FORMATS = {
    "none": FormatError(0.0, 0.0),
    "fp8": FormatError(_FP8, _FP8),
    "fp8_rowwise": FormatError(_FP8, _FP8),
    "int8_weight_only": FormatError(3.5 / 128 / math.sqrt(12), 0.0),
    "int4_weight_only": FormatError(3.5 / 8 / math.sqrt(12), 0.0),
    "int4_awq": FormatError(2.7 / 7 / math.sqrt(12), 0.0),
    "w4a8_awq": FormatError(2.7 / 7 / math.sqrt(12), _FP8),
    "int8_smoothquant": FormatError(3.5 / 128 / math.sqrt(12), 15 / 127 / math.sqrt(12)),
    "nvfp4": FormatError(0.1, 0.1),
}


def quantization_error(quantization: str) -> float:
    """Relative error of the last hidden state of a model that passes errors on as they are.

    Every linear layer's errors count by its branch's share of the stream; over all layers the shares add up to about
    one layer's, as for roundings of the dtype.
    """
    error = _FORMATS[quantization]
    return math.sqrt(_MATRICES * error.weights**2 + _INPUTS * error.inputs**2)
