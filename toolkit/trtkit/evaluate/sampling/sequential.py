"""The same test at several looks, so that a good source ends it early. Pure: counts in, a decision out, seeded draws.

The level and the chance of a miss are shared out over the looks (Bonferroni), so both hold for the whole whatever the
looks have to do with each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trtkit.evaluate.sampling.distribution import POWER, is_surely_closer, make_bins, p_value, samples_needed

Decision = Literal["open", "consistent", "different"]
LOOKS = (0.25, 0.5, 0.75, 1.0)
_MOST_NUM_DRAWS = 200_000

LEAST_ALPHA = len(LOOKS) / _MOST_NUM_DRAWS
"""Level of one test below which no p-value of that many draws is small enough to reject anything."""


@dataclass(frozen=True)
class Design:
    """distance: the total variation that is to be found with probability POWER. alpha: chance of a false alarm of one
    test over all looks. looks: sample counts at which it may end, rising."""

    distance: float
    alpha: float
    looks: tuple[int, ...]

    @property
    def alpha_per_look(self) -> float:
        """Level of one look."""
        return self.alpha / len(self.looks)

    @property
    def miss_per_look(self) -> float:
        """Chance that one look takes a source at `distance` for a good one."""
        return (1 - POWER) / len(self.looks)


def make_design(
    probabilities: dict[int, float], distance: float, alpha: float, most_samples: int, rng: np.random.Generator
) -> Design:
    """As many samples as the distance takes for this distribution, at most `most_samples`, and quarters of them."""
    per_look, power = alpha / len(LOOKS), 1 - (1 - POWER) / len(LOOKS)
    num_samples = 64
    while num_samples < most_samples:
        num_bins = len(make_bins(probabilities, num_samples).probabilities)
        if num_bins == 1 or samples_needed(num_bins, distance, per_look, rng, power) <= num_samples:
            break
        num_samples = num_samples * 5 // 4
    most = min(num_samples, most_samples)
    return Design(distance, alpha, tuple(int(np.ceil(most * share)) for share in LOOKS))


def decide(
    counts: NDArray[np.int64],
    probabilities: Sequence[float],
    design: Design,
    *,
    is_last: bool,
    rng: np.random.Generator,
) -> tuple[Decision, float]:
    """(decision, p-value) of one look. The last look leaves nothing open.

    Small levels need many draws of the null distribution, so that the smallest possible p-value is below them.
    """
    num_draws = min(_MOST_NUM_DRAWS, round(20 / design.alpha_per_look))
    p = p_value(counts, probabilities, rng, num_draws)
    if p <= design.alpha_per_look:
        return "different", p
    if is_last or is_surely_closer(counts, probabilities, design.distance, design.miss_per_look, rng):
        return "consistent", p
    return "open", p
