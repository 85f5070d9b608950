"""The static scale of a number format: limit / largest code, as float32 stores it. Knows no file and no layer."""

import math

import numpy as np


def static_scale(limit: float, largest_code: float) -> float | None:
    """limit / largest_code in float32, or None where that or its reciprocal is not finite and positive there.

    x ~= q * scale, and kernels quantise with the reciprocal: q = x * (1 / scale).
    """
    with np.errstate(all="ignore"):
        scale = np.float32(limit / largest_code)
        reciprocal = np.float32(1.0) / scale
    usable = 0 < scale < math.inf and 0 < reciprocal < math.inf
    return float(scale) if usable else None
