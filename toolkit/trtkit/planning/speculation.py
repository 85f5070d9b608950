"""What draft-target speculation gains: pure arithmetic from acceptance and costs. Knows no model and no GPU.

One round drafts K tokens one after another and verifies them in one pass of the target. With a chance `acceptance` for
each draft token to be kept, given that those before it were, a round yields (1 - a^(K+1)) / (1 - a) tokens
(Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023, equation 1).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

DRAFT_LENGTHS = range(1, 17)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
DEFAULT_ACCEPTANCE = 0.7
_STEPS = 60


@dataclass(frozen=True)
class RoundCosts:
    """Times relative to one plain pass of the target: draft_step of one drafted token, verify(K) of K + 1 tokens."""

    draft_step: float
    verify: Callable[[int], float]

    def round(self, draft_len: int) -> float:
        """Time of a whole round."""
        return draft_len * self.draft_step + self.verify(draft_len)


@dataclass(frozen=True)
class Gain:
    """The prediction for one draft length and one acceptance.

    acceptance_rate is the chance `a` of the formula; accepted_per_drafted is what `trtkit bench` calls acceptance_rate.
    """

    max_draft_len: int
    acceptance_rate: float
    speedup: float
    mean_acceptance_length: float

    @property
    def accepted_per_drafted(self) -> float:
        """Accepted / drafted tokens."""
        return (self.mean_acceptance_length - 1) / self.max_draft_len


def tokens_per_round(acceptance: float, draft_len: int) -> float:
    """Expected tokens of one round, the target's own one included."""
    if acceptance >= 1:
        return draft_len + 1.0
    return float((1 - acceptance ** (draft_len + 1)) / (1 - acceptance))


def gain(acceptance: float, draft_len: int, costs: RoundCosts) -> Gain:
    """The prediction for one draft length."""
    length = tokens_per_round(acceptance, draft_len)
    return Gain(draft_len, acceptance, length / costs.round(draft_len), length)


def measured_speedup(accepted_per_drafted: float, draft_len: int, costs: RoundCosts) -> float:
    """The speed-up for a measured acceptance rate at this draft length; makes no assumption on its distribution."""
    return (1 + accepted_per_drafted * draft_len) / costs.round(draft_len)


def chance_of(accepted_per_drafted: float, draft_len: int) -> float:
    """The chance `a` that gives this measured rate at this draft length; the rate grows with the chance."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rate = (tokens_per_round(middle, draft_len) - 1) / draft_len
        low, high = (middle, high) if rate < accepted_per_drafted else (low, middle)
    return high


def best_draft_len(acceptance: float, costs: RoundCosts, lengths: Iterable[int] = DRAFT_LENGTHS) -> int:
    """The draft length with the largest gain, 0 when none is faster than plain decoding."""
    best = max((gain(acceptance, length, costs) for length in lengths), key=lambda one: one.speedup)
    return best.max_draft_len if best.speedup > 1 else 0


def break_even(draft_len: int, costs: RoundCosts) -> float | None:
    """The smallest acceptance at which this draft length pays; None when not even full acceptance does."""
    if gain(1.0, draft_len, costs).speedup <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle, draft_len, costs).speedup > 1 else (middle, high)
    return high
