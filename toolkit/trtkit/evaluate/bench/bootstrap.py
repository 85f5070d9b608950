"""Confidence intervals by resampling. Pure: values in, bounds out, seeded; knows nothing of what the values mean."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 0

Interval = tuple[float, float]
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def interval_of(values: Sequence[float], statistic: Statistic) -> Interval:
    """The bounds between which the statistic of the population lies with CONFIDENCE (percentile bootstrap, Efron 1979).

    statistic takes [resamples, values] and returns one number per row. Raises ValueError for no values.
    """
    return _bounds(statistic(np.asarray(values, dtype=np.float64)[resamples(len(values))]))


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """The bounds of sum(numerators) / sum(denominators), of which both belong to the same request."""
    drawn = resamples(len(numerators))
    tops, bottoms = (np.asarray(part, dtype=np.float64)[drawn].sum(axis=1) for part in (numerators, denominators))
    return _bounds(tops / bottoms)


def speedup_interval(
    one: tuple[Sequence[float], Sequence[float]], other: tuple[Sequence[float], Sequence[float]]
) -> Interval:
    """The bounds of one's sum / sum over the other's, each given as (numerators, denominators) by request.

    The two are resampled together: their n-th requests had the same prompt.
    """
    count = min(len(one[0]), len(other[0]))
    drawn = resamples(count)
    ratios = []
    for numerators, denominators in (one, other):
        tops, bottoms = (np.asarray(part[:count], dtype=np.float64)[drawn] for part in (numerators, denominators))
        ratios.append(tops.sum(axis=1) / bottoms.sum(axis=1))
    return _bounds(ratios[0] / ratios[1])


def percentile_statistic(percent: float) -> Statistic:
    """The percentile of each row, interpolated linearly between neighbours."""
    return lambda rows: np.percentile(rows, percent, axis=1)


def resamples(num_values: int) -> NDArray[np.int64]:
    """Indices drawn with replacement.  returns [NUM_RESAMPLES, num_values]

    Raises ValueError for no values.
    """
    if not num_values:
        raise ValueError("a confidence interval needs at least one value")
    return np.random.default_rng(SEED).integers(0, num_values, size=(NUM_RESAMPLES, num_values))


def _bounds(statistics: NDArray[np.float64]) -> Interval:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(statistics, [tail, 100 - tail])
    return float(low), float(high)
