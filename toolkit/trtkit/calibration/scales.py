"""From what was measured to a scale: amax, power of two, percentile, MSE, entropy. Pure; knows no layer and no file.

A scale s dequantises (x ~= q * s). Every method chooses a limit, the magnitude that becomes the largest code, so
s = limit / 448 for FP8, / 127 for INT8, / 7 for INT4. amax keeps everything that was measured, a power of two at least
that; the others may let outliers saturate so that the rest is kept better.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trtkit.calibration.histogram import MagnitudeHistogram
from trtkit.calibration.number_formats import LARGEST, Format, fake_quantize
from trtkit.conversion.static_scale import static_scale

Method = Literal["power-of-two", "amax", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = ("power-of-two", "amax", "percentile", "mse", "entropy")
_CANDIDATES = 128
_LOWEST_SHARE = 1 / 32


@dataclass(frozen=True)
class ScaleMethod:
    """How limits are chosen; percentile matters for the method of that name only.

    Powers of two are for FP8 caches: without calibration these have the scale 1.0, which a power of two is never worse
    than for numbers up to 448, and saves what is larger (_whole_octaves). Whatever else is quantised takes amax then,
    as nvidia-modelopt does.
    """

    name: Method = "power-of-two"
    percentile: float = 99.99

    @property
    def for_inputs(self) -> "ScaleMethod":
        """The method for what enters linear layers."""
        return replace(self, name="amax") if self.name == "power-of-two" else self

    def limit(self, histogram: MagnitudeHistogram, amax: float, kind: Format) -> float:
        """The magnitude that becomes the largest code: 0 only for zeros, above amax only for powers of two."""
        if amax == 0 or not histogram.total or self.name == "amax":
            return amax
        if self.name == "power-of-two":
            return _whole_octaves(amax) if kind == "fp8" else amax
        if self.name == "percentile":
            return min(histogram.percentile(self.percentile), amax) or amax
        cost = _squared_error if self.name == "mse" else _divergence
        limits = _candidates(amax)
        costs = [cost(histogram, limit / LARGEST[kind], kind) for limit in limits]
        return float(limits[int(np.argmin(costs))])


def scale_of(limit: float, kind: Format) -> float:
    """limit / largest code as the converter computes it; 1.0 for zeros and for numbers that have no float32 scale."""
    return static_scale(limit, LARGEST[kind]) or 1.0


def group_scales(channel_amax: NDArray[np.float32], group_size: int, kind: Format) -> NDArray[np.float32]:
    """One scale per group of neighbouring channels (the last group may be smaller): [C] -> [ceil(C / group_size)]."""
    starts = np.arange(0, channel_amax.size, group_size)
    limits = np.maximum.reduceat(channel_amax, starts)
    return np.where(limits > 0, limits / np.float32(LARGEST[kind]), np.float32(1.0)).astype(np.float32)


def _whole_octaves(amax: float) -> float:
    """The limit whose FP8 scale is the least power of two that keeps amax.

    A floating-point code times a power of two is rounded as without it, so against scale 1.0 range is all that changes:
    nothing saturates, and a cache of small numbers loses fewer of them at the lower end. Where amax exceeds 448 the
    lower end is the price: numbers below scale / 64 keep fewer bits than with 1.0, each losing at most scale / 1024.
    """
    return LARGEST["fp8"] * 2.0 ** math.ceil(math.log2(amax / LARGEST["fp8"]))


def _candidates(amax: float) -> NDArray[np.float64]:
    """amax first, so that it wins ties; then down to a small share of it in equal ratios."""
    return amax * np.geomspace(1.0, _LOWEST_SHARE, _CANDIDATES)


def _squared_error(histogram: MagnitudeHistogram, scale: float, kind: Format) -> float:
    """Sum of (x - q s)^2 over everything counted."""
    error = fake_quantize(histogram.values, scale, kind) - histogram.values
    return float(np.dot(error**2, histogram.counts))


def _divergence(histogram: MagnitudeHistogram, scale: float, kind: Format) -> float:
    """KL(P || Q): P what is inside the limit, the rest piled on its last bin; Q what the codes can tell of the inside.

    Each code's mass is spread evenly over the occupied bins it serves (the calibration of TensorRT's INT8, "8-bit
    inference with TensorRT", 2017, over bins of unequal width). Zeros are left out: every scale represents them.
    """
    inside = (histogram.values > 0) & (histogram.values <= scale * LARGEST[kind] * (1 + 1e-9))
    values, counts, widths = histogram.values[inside], histogram.counts[inside], histogram.widths[inside]
    if not counts.size:
        return float("inf")
    p = counts.astype(np.float64)
    p[-1] += histogram.counts[histogram.values > values[-1]].sum()
    _, code = np.unique(fake_quantize(values, scale, kind), return_inverse=True)
    density = np.bincount(code, weights=counts) / np.bincount(code, weights=widths)
    q = density[code] * widths
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))
