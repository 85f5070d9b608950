"""How far rounding alone may move two logits apart. Pure: the formula of docs/tolerance.md, no model, no file."""

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

DEVIATIONS = 6.0
"""Deviations of the logit difference that still count as rounding. The errors of real models lean towards the rows of
likely tokens: measured deviations are 1.0 to 1.5 times the formula's, so that six of these are 4 to 6 of those."""

MANTISSA_BITS: dict[str, int] = {"float32": 23, "float16": 10, "bfloat16": 7}
"""Stored bits of the mantissa; formats that are not listed are narrower than all of these."""


@dataclass(frozen=True)
class NumericProfile:
    """What decides how far rounding carries a deployment: its dtype, the shape of the model, and its conditioning.

    weights_rounded says that the checkpoint's weights are wider than the deployment's dtype, quantization how linear
    layers are stored. conditioning is how much larger the model's state error is than roundings that neither grow nor
    shrink would make it; it belongs to the weights, not to the dtype (conditioning.py measures it). kv_error is what a
    cache in FP8, INT8 or INT4 adds, weight_error what the quantised layers add: the distance of the oracle's own states
    with and without that rounding (rounding_cache.py and rounding_weights.py measure them).
    """

    dtype: Dtype
    num_layers: int
    hidden_size: int
    weights_rounded: bool = False
    conditioning: float = 1.0
    oracle_dtype: Dtype = "float32"
    kv_error: float = 0.0
    weight_error: float = 0.0
    quantization: str = "none"

    @property
    def state_error(self) -> float:
        """Root-mean-square relative distance of the two last hidden states, the oracle's and the deployment's."""
        deployed = unconditioned_state_error(
            self.dtype, self.num_layers, self.hidden_size, weights_rounded=self.weights_rounded
        )
        oracle = unconditioned_state_error(self.oracle_dtype, self.num_layers, self.hidden_size)
        rounding = max(self.conditioning, 1.0) * math.hypot(deployed, oracle)
        return math.hypot(rounding, self.kv_error, self.weight_error)

    @property
    def logit_error(self) -> float:
        """Largest relative error of a logit that is rounded on both sides."""
        return UNIT_ROUNDOFF[self.dtype] + UNIT_ROUNDOFF[self.oracle_dtype]


def unconditioned_state_error(dtype: str, num_layers: int, hidden_size: int, *, weights_rounded: bool = False) -> float:
    """Root-mean-square relative error of the last hidden state, roundings taken as independent and of equal weight.

    Sums of hidden_size products are accumulated in float32, which adds at most sqrt(hidden_size) * 2^-24 to each
    rounding and matters in float32 only.
    """
    per_rounding = UNIT_ROUNDOFF[dtype] ** 2 + hidden_size * UNIT_ROUNDOFF["float32"] ** 2
    roundings = STREAM_ROUNDINGS_PER_LAYER * num_layers + BRANCH_ROUNDINGS
    if weights_rounded:
        roundings += WEIGHT_ROUNDINGS
    return MEAN_ROUNDING * math.sqrt(roundings * per_rounding)


def loses_bits(stored: str, dtype: str) -> bool:
    """Whether weights stored in one dtype are rounded when they are cast to the other."""
    return MANTISSA_BITS.get(stored, 0) > MANTISSA_BITS[dtype]


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
    return DEVIATIONS * deviation + 2 * profile.logit_error * pair.magnitude
