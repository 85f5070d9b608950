"""The number formats of quantised caches and inputs: what a value becomes under a scale. Pure numpy, float64.

q = round(x / scale), x ~= q * scale; values beyond the largest code saturate. FP8 is float8_e4m3fn: 3 mantissa bits,
largest 448, smallest step 2^-9; integers are symmetric.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Format = Literal["fp8", "int8", "int4"]
LARGEST: dict[Format, float] = {"fp8": 448.0, "int8": 127.0, "int4": 7.0}
_SMALLEST_EXPONENT = -6
_MANTISSA_BITS = 3


def fake_quantize(values: NDArray[np.float64], scale: NDArray[np.float64] | float, kind: Format) -> NDArray[np.float64]:
    """x -> q * scale, the value that comes back. `scale` broadcasts; it must be positive."""
    scaled = values / scale
    limited = np.clip(scaled, -LARGEST[kind], LARGEST[kind])
    rounded: NDArray[np.float64] = _round_e4m3(limited) if kind == "fp8" else np.rint(limited)
    return rounded * scale


def _round_e4m3(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest e4m3 number, ties to even; |values| <= 448. Below 2^-6 the step stays that of the smallest octave."""
    exponent = np.floor(np.log2(np.maximum(np.abs(values), 2.0**_SMALLEST_EXPONENT)))
    step = np.exp2(exponent - _MANTISSA_BITS)
    rounded: NDArray[np.float64] = np.rint(values / step) * step
    return rounded
