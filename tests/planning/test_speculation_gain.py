"""The gain of drafting follows the published formula, and the recommendation follows the gain."""

import numpy as np
import pytest
from trtkit.planning.speculation import (
    RoundCosts,
    best_draft_len,
    break_even,
    chance_of,
    gain,
    measured_speedup,
    tokens_per_round,
)

FREE_VERIFICATION = RoundCosts(0.05, lambda _: 1.0)


@pytest.mark.parametrize(
    ("acceptance", "draft_len", "tokens"), [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.5, 2, 1.75)]
)
def test_tokens_per_round(acceptance: float, draft_len: int, tokens: float) -> None:
    assert tokens_per_round(acceptance, draft_len) == pytest.approx(tokens)


def test_tokens_per_round_is_the_mean_of_simulated_rounds() -> None:
    kept = np.random.default_rng(7).random((200_000, 5)) < 0.7
    simulated = 1 + np.cumprod(kept, axis=1).sum(axis=1)
    standard_error = simulated.std() / np.sqrt(len(simulated))
    assert tokens_per_round(0.7, 5) == pytest.approx(simulated.mean(), abs=4 * standard_error)


def test_a_free_draft_that_is_always_right_gains_its_length_plus_one() -> None:
    assert gain(1.0, 4, RoundCosts(0.0, lambda _: 1.0)).speedup == 5


def test_a_draft_as_slow_as_its_target_never_pays() -> None:
    costs = RoundCosts(1.0, lambda _: 1.0)
    assert best_draft_len(0.95, costs) == 0
    assert break_even(4, costs) is None


def test_a_verification_that_grows_with_the_draft_shortens_the_best_length() -> None:
    growing = RoundCosts(0.05, lambda draft_len: 1 + 0.2 * draft_len)
    assert best_draft_len(0.8, growing) < best_draft_len(0.8, FREE_VERIFICATION)


def test_break_even_is_where_the_gain_is_one() -> None:
    even = break_even(4, FREE_VERIFICATION)
    assert even is not None
    assert gain(even, 4, FREE_VERIFICATION).speedup == pytest.approx(1.0)


@pytest.mark.parametrize("chance", [0.2, 0.6, 0.9])
def test_a_measured_rate_leads_back_to_its_chance(chance: float) -> None:
    rate = gain(chance, 4, FREE_VERIFICATION).accepted_per_drafted
    assert chance_of(rate, 4) == pytest.approx(chance, abs=1e-6)


def test_a_measured_rate_predicts_the_same_gain_as_its_chance() -> None:
    predicted = gain(0.7, 4, FREE_VERIFICATION)
    assert measured_speedup(predicted.accepted_per_drafted, 4, FREE_VERIFICATION) == pytest.approx(predicted.speedup)
