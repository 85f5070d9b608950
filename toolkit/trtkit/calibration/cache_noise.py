"""The noise that a cache with a given scale adds to keys or values, from what a pass counted. Knows no layer, no limit.

Noise over signal as in errors.py, but over every number that was measured, and for any scale: what it cuts counts.
"""

import numpy as np

from trtkit.calibration.number_formats import Format, fake_quantize
from trtkit.calibration.records import TensorRecord

_ROUNDING = 1e-12  # of the mean square: what differs less between tokens is float64's rounding


def cache_noise(tensor: TensorRecord, scale: float, kind: Format) -> float:
    """0 where the tokens do not differ, as then nothing can be lost."""
    signal = _variance(tensor)
    return float(np.sqrt(_mean_squared_error(tensor, scale, kind) / signal)) if signal > 0 else 0.0


def _variance(tensor: TensorRecord) -> float:
    """What differs between tokens: the mean over channels of the mean (x - channel mean)^2."""
    squares = tensor.channel_mean_square
    found = squares - tensor.channel_mean**2
    return float(np.where(found > _ROUNDING * squares, found, 0.0).mean())


def _mean_squared_error(tensor: TensorRecord, scale: float, kind: Format) -> float:
    """A bin counts as its middle, which in the last one may exceed whatever was measured."""
    histogram = tensor.histogram
    values = np.minimum(histogram.values, tensor.amax)
    errors = np.square(fake_quantize(values, scale, kind) - values)
    return float(np.dot(errors, histogram.counts) / max(1, histogram.total))
