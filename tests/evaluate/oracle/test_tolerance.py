"""The near-tie tolerance: what it depends on, and in which direction. Its size is checked against real rounding."""

import math
from dataclasses import replace

import numpy as np
import pytest
from trtkit.evaluate.oracle.tolerance import (
    MEAN_ROUNDING,
    LogitPair,
    NumericProfile,
    loses_bits,
    near_tie_tolerance,
)

BF16 = NumericProfile("bfloat16", num_layers=30, hidden_size=576)
PAIR = LogitPair(state_norm=100.0, row_distance=1.0, magnitude=20.0)


def test_rounding_errs_by_the_mean_that_the_formula_uses() -> None:
    # 10-bit mantissas spread evenly over a decade in the logarithm, rounded by numpy itself.
    values = np.exp(np.random.default_rng(0).uniform(0, math.log(2), 200_000))
    errors = (values.astype(np.float16).astype(np.float64) - values) / values
    assert math.sqrt(float((errors**2).mean())) == pytest.approx(MEAN_ROUNDING * 2**-11, rel=0.01)


def test_a_float32_deployment_has_next_to_no_tolerance() -> None:
    tolerance = near_tie_tolerance(replace(BF16, dtype="float32"), PAIR)
    assert 0 < tolerance < 2e-3 * near_tie_tolerance(BF16, PAIR)


def test_the_tolerance_is_the_formula_of_the_documentation() -> None:
    state_error = 1.5 * MEAN_ROUNDING * math.sqrt((2 * 30 + 12) * (2.0**-16 + 576 * 2.0**-48))
    profile = replace(BF16, conditioning=1.5)
    assert profile.state_error == pytest.approx(state_error, rel=1e-5)  # the float32 oracle adds next to nothing
    tolerance = 6 * state_error * 100 / 24 + 2 * (2.0**-8 + 2.0**-24) * 20
    assert near_tie_tolerance(profile, PAIR) == pytest.approx(tolerance, rel=1e-5)


def test_an_oracle_that_rounds_as_much_as_the_deployment_adds_its_own_error() -> None:
    profile = replace(BF16, oracle_dtype="bfloat16")
    assert profile.state_error == pytest.approx(math.sqrt(2) * BF16.state_error)
    assert profile.logit_error == 2 * 2.0**-8


def test_a_model_that_damps_rounding_is_not_held_to_less_than_its_depth_explains() -> None:
    assert replace(BF16, conditioning=0.5).state_error == BF16.state_error


@pytest.mark.parametrize(
    ("larger", "pair"),
    [
        (replace(BF16, num_layers=31), PAIR),
        (replace(BF16, weights_rounded=True), PAIR),
        (replace(BF16, conditioning=1.1), PAIR),
        (BF16, replace(PAIR, state_norm=101.0)),
        (BF16, replace(PAIR, row_distance=1.1)),
        (BF16, replace(PAIR, magnitude=21.0)),
    ],
)
def test_more_roundings_or_larger_logits_widen_it(larger: NumericProfile, pair: LogitPair) -> None:
    assert near_tie_tolerance(larger, pair) > near_tie_tolerance(BF16, PAIR)


def test_tokens_with_the_same_row_tie_only_by_the_rounding_of_their_logits() -> None:
    assert near_tie_tolerance(BF16, replace(PAIR, row_distance=0.0)) == 2 * BF16.logit_error * 20


@pytest.mark.parametrize(
    ("deployed", "stored", "rounded"),
    [
        ("bfloat16", "bfloat16", False),
        ("bfloat16", "float32", True),
        ("bfloat16", "float16", True),
        ("float16", "bfloat16", False),
        ("float32", "bfloat16", False),
        ("bfloat16", "float8_e4m3fn", False),
    ],
)
def test_weights_are_rounded_where_the_checkpoint_is_wider(deployed: str, stored: str, rounded: bool) -> None:
    assert loses_bits(stored, deployed) is rounded
