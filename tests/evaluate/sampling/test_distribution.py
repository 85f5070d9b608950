"""The sampling test: exact under the null, powerful as stated."""

from collections.abc import Sequence

import numpy as np
import pytest
from trtkit.evaluate.sampling.distribution import (
    Bins,
    detectable_distance,
    distance,
    make_bins,
    p_value,
    samples_needed,
)

P = (0.5, 0.25, 0.125, 0.0625, 0.0625)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rare_tokens_share_a_bin() -> None:
    bins = make_bins({7: 0.6, 8: 0.25, 9: 0.07, 10: 0.04, 11: 0.04}, num_samples=100)
    assert bins.tokens == (7, 8, 9)
    assert bins.probabilities == pytest.approx((0.6, 0.25, 0.07, 0.08))


def test_a_rest_too_rare_to_count_on_joins_the_rarest_bin() -> None:
    bins = make_bins({7: 0.6, 8: 0.3, 9: 0.09, 10: 0.01}, num_samples=100)
    assert bins.tokens == (7, 8)
    assert bins.probabilities == pytest.approx((0.6, 0.3, 0.1))


def test_a_certain_token_leaves_one_bin_and_nothing_to_test() -> None:
    assert make_bins({7: 0.999, 8: 0.001}, num_samples=100).probabilities == pytest.approx((1.0,))


def test_samples_are_counted_by_bin() -> None:
    assert Bins((7, 8), (0.5, 0.3, 0.2)).count([7, 7, 9, 8, 10]).tolist() == [2, 1, 2]


def test_distance_is_half_the_sum_of_differences() -> None:
    assert distance(np.array([60, 40]), (0.5, 0.5)) == pytest.approx(0.1)


def rejection_rate(truth: Sequence[float], num_samples: int, alpha: float) -> float:
    draws = rng(1).multinomial(num_samples, truth, size=200)
    return float(np.mean([p_value(counts, P, rng(2), num_draws=2000) <= alpha for counts in draws]))


def test_under_the_right_distribution_few_p_values_are_small() -> None:
    # 200 runs: five standard deviations above 0.05 is 0.127.
    assert rejection_rate(P, 200, alpha=0.05) < 0.127


@pytest.mark.parametrize(
    "direction", [(1, -1, 0, 0, 0), (1, 0, 0, 0, -1), (0, 1, -1, 0, 0), (-1, 0.25, 0.25, 0.25, 0.25)]
)
def test_a_deviation_of_the_stated_size_is_found_in_every_direction(direction: Sequence[float]) -> None:
    num_samples, alpha = 1500, 0.01
    size = detectable_distance(len(P), num_samples, alpha, rng())
    truth = [p + size * d / (sum(map(abs, direction)) / 2) for p, d in zip(P, direction, strict=True)]
    assert min(truth) >= 0
    # Stated: 0.9. 200 runs: five standard deviations below it is 0.79.
    assert rejection_rate(truth, num_samples, alpha) > 0.79


def test_more_samples_find_smaller_deviations() -> None:
    sizes = [detectable_distance(5, n, 0.01, rng()) for n in (100, 400, 1600)]
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.05)
    assert sizes[1] == pytest.approx(2 * sizes[2], rel=0.05)


def test_counts_as_far_off_as_those_seen_are_part_of_the_p_value() -> None:
    """Seven of ten tosses: 7, 8, 9, 10 or 0 to 3 heads have probability 0.344, without those of 7 and 3 it is 0.109."""
    assert p_value(np.array([7, 3]), [0.5, 0.5], np.random.default_rng(0)) == pytest.approx(0.34375, abs=0.02)


def test_the_same_seed_gives_the_same_p_value() -> None:
    counts = np.array([90, 60, 20, 15, 15])
    assert p_value(counts, P, rng(5)) == p_value(counts, P, rng(5))


def test_the_samples_needed_for_a_distance_are_those_that_detect_it() -> None:
    num_samples = samples_needed(5, 0.1, 0.01, rng())
    assert detectable_distance(5, num_samples, 0.01, rng()) == pytest.approx(0.1, rel=0.02)
