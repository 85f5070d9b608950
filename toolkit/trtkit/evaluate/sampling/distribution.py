"""Do samples follow a distribution? An exact test with a stated power. Pure: counts and probabilities, seeded draws."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_EXPECTED = 5.0
"""Samples expected in a bin, at least: rarer tokens are pooled."""

NUM_DRAWS = 20_000
"""Draws of the null distribution; no p-value is smaller than one over this."""

POWER = 0.9


@dataclass(frozen=True)
class Bins:
    """Tokens that get a bin of their own, and the probabilities of these bins and, last, of all other tokens."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]

    def count(self, samples: Iterable[int]) -> NDArray[np.int64]:
        """Samples in each bin."""
        seen = Counter(samples)
        own = [seen.pop(token, 0) for token in self.tokens]
        return np.array([*own, sum(seen.values())][: len(self.probabilities)], dtype=np.int64)


def make_bins(probabilities: Mapping[int, float], num_samples: int) -> Bins:
    """A bin for every token that is expected at least MIN_EXPECTED times, one for the rest.

    A rest that is expected less often takes the rarest of the bins in, so that every bin can be counted on.
    """
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    own = [(token, p) for token, p in ranked if p * num_samples >= MIN_EXPECTED]
    rest = max(1.0 - sum(p for _, p in own), 0.0)
    while own and rest * num_samples < MIN_EXPECTED:
        rest += own.pop()[1]
    return Bins(tuple(token for token, _ in own), (*(p for _, p in own), rest))


def p_value(
    counts: NDArray[np.int64], probabilities: Sequence[float], rng: np.random.Generator, num_draws: int = NUM_DRAWS
) -> float:
    """Probability of a Pearson statistic at least as large as this one, by drawing from the multinomial itself.

    Exact up to the number of draws (Davison and Hinkley 1997, 4.2: the observation counts as one of the draws).
    """
    expected = np.asarray(probabilities) * counts.sum()
    draws = rng.multinomial(int(counts.sum()), np.asarray(probabilities) / np.sum(probabilities), size=num_draws)
    observed = _pearson(counts[None], expected)[0]
    # Equal counts give sums that differ in the last bits.
    return float(1 + (_pearson(draws, expected) >= observed * (1 - 1e-9)).sum()) / (num_draws + 1)


def distance(counts: NDArray[np.int64], probabilities: Sequence[float]) -> float:
    """Total variation between the shares observed and the probabilities, over the bins."""
    return float(np.abs(counts / counts.sum() - np.asarray(probabilities)).sum() / 2)


def detectable_distance(
    num_bins: int, num_samples: int, alpha: float, rng: np.random.Generator, power: float = POWER
) -> float:
    """The total variation that is found with this power at level alpha, whatever its direction.

    A deviation d of the bins' probabilities p gives Pearson's statistic the noncentrality n * sum(d^2 / p), which by
    Cauchy-Schwarz is at least 4 n TV^2. So the noncentrality that is found with this power bounds TV.
    """
    return float(np.sqrt(_noncentrality(num_bins - 1, alpha, power, rng) / (4 * num_samples)))


def samples_needed(num_bins: int, distance: float, alpha: float, rng: np.random.Generator, power: float = POWER) -> int:
    """Samples with which this total variation is found with this power at level alpha."""
    return int(np.ceil(_noncentrality(num_bins - 1, alpha, power, rng) / (4 * distance**2)))


def is_surely_closer(
    counts: NDArray[np.int64], probabilities: Sequence[float], distance: float, miss: float, rng: np.random.Generator
) -> bool:
    """Whether the statistic is so small that a source at this total variation or farther gives it with probability
    `miss` at most, by the noncentral chi-squared distribution of the bound in detectable_distance."""
    expected = np.asarray(probabilities) * counts.sum()
    farther = rng.noncentral_chisquare(len(counts) - 1, 4 * counts.sum() * distance**2, size=NUM_DRAWS)
    return bool(_pearson(counts[None], expected)[0] <= np.quantile(farther, miss))


def _noncentrality(freedom: int, alpha: float, power: float, rng: np.random.Generator) -> float:
    """The noncentrality at which chi-squared passes its critical value at level alpha with this power."""
    critical = np.quantile(rng.chisquare(freedom, size=20 * NUM_DRAWS), 1 - alpha)
    low, high = 0.0, 1.0
    while np.quantile(rng.noncentral_chisquare(freedom, high, size=NUM_DRAWS), 1 - power) < critical:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        found = np.quantile(rng.noncentral_chisquare(freedom, middle, size=NUM_DRAWS), 1 - power) >= critical
        low, high = (low, middle) if found else (middle, high)
    return high


def _pearson(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(((counts - expected) ** 2 / expected).sum(axis=1))
