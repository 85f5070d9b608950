"""How far rounding alone may move two logits apart. Pure: the formula of docs/verification.md, no model, no file."""

import math
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16"]

UNIT_ROUNDOFF: dict[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to nearest: half a step of a 23-, 10- and 7-bit mantissa."""

MEAN_ROUNDING = math.sqrt((3 / 8) / math.log(2) / 3)
"""Root-mean-square error of rounding, in unit roundoffs: the error is spread evenly over +-u/m for a mantissa m, and
mantissas over 1..2 are distributed as 1 / (m ln 2), so the mean of 1 / m^2 is 3 / (8 ln 2)."""

STREAM_ROUNDINGS_PER_LAYER = 2
"""A layer adds to the residual stream twice, and each sum rounds the whole stream."""

BRANCH_ROUNDINGS = 12
"""Roundings inside the branches: norms, QKV, rotation, attention weights and output, projections, gate times up.
They reach the stream in proportion to the branch's share of it; over all layers these shares add up to one."""

WEIGHT_ROUNDINGS = 9
"""Weights rounded from a wider checkpoint: seven matrices of the branches, the embedding, the head."""

DEVIATIONS = 4.0
"""Standard deviations of the logit difference that still count as rounding."""

MANTISSA_BITS: dict[str, int] = {"float32": 23, "float16": 10, "bfloat16": 7}


@dataclass(frozen=True)
class NumericProfile:
    """What decides a deployment's rounding: its dtype and the shape of the model.

    weights_rounded says that the checkpoint's weights are wider than the deployment's dtype.
    """

    dtype: Dtype
    num_layers: int
    hidden_size: int
    weights_rounded: bool = False

    @property
    def state_error(self) -> float:
        """Root-mean-square relative error of the last hidden state, roundings taken as independent.

        Sums of hidden_size products are accumulated in float32, which adds at most sqrt(hidden_size) * 2^-24 to each
        rounding and matters in float32 only.
        """
        per_rounding = UNIT_ROUNDOFF[self.dtype] ** 2 + self.hidden_size * UNIT_ROUNDOFF["float32"] ** 2
        roundings = STREAM_ROUNDINGS_PER_LAYER * self.num_layers + BRANCH_ROUNDINGS
        if self.weights_rounded:
            roundings += WEIGHT_ROUNDINGS
        return MEAN_ROUNDING * math.sqrt(roundings * per_rounding)


def profile_of(dtype: Dtype, weights_dtype: str, num_layers: int, hidden_size: int) -> NumericProfile:
    """The profile of a deployment in `dtype` of a checkpoint whose weights are stored in `weights_dtype`."""
    rounded = MANTISSA_BITS[weights_dtype] > MANTISSA_BITS[dtype]
    return NumericProfile(dtype, num_layers, hidden_size, rounded)


@dataclass(frozen=True)
class LogitPair:
    """Two candidate tokens at one step, as the oracle sees them.

    state_norm is the length of the state that enters the head, row_distance the distance between the two rows of the
    head, magnitude the larger absolute logit of the two.
    """

    state_norm: float
    row_distance: float
    magnitude: float


def near_tie_tolerance(profile: NumericProfile, pair: LogitPair) -> float:
    """The margin below which the deployment's rounding may swap the two tokens.

    The state's error e has length state_error * |h| and no preferred direction, so the difference of the two logits,
    e . (w_a - w_b), has the deviation state_error * |h| * |w_a - w_b| / sqrt(hidden_size). Rounding the two logits
    themselves adds at most one unit roundoff of each.
    """
    deviation = profile.state_error * pair.state_norm * pair.row_distance / math.sqrt(profile.hidden_size)
    return DEVIATIONS * deviation + 2 * UNIT_ROUNDOFF[profile.dtype] * pair.magnitude
