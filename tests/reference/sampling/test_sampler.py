"""One row of logits, one token: penalties, cuts, draws."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from trtkit.errors import RequestError
from trtkit.reference.sampling.noise import uniform
from trtkit.reference.sampling.params import MAX_SEED, SamplingParams
from trtkit.reference.sampling.sampler import Draw, choose, cut, penalize

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0])


def draw(noise: float = 0.0, counts: dict[int, int] | None = None, forbidden: int | None = None, **values: Any) -> Draw:
    return Draw(SamplingParams(**{"top_k": 0, **values}), counts or {}, noise, forbidden)


def share_of_tokens(**values: Any) -> list[float]:
    """How often each token is chosen over a fine grid of noise."""
    grid = 2000
    chosen = Counter(choose(LOGITS, draw((i + 0.5) / grid, **values)) for i in range(grid))
    return [chosen[token] / grid for token in range(len(LOGITS))]


@pytest.mark.parametrize("values", [{"top_k": 1}, {"temperature": 0.0}])
def test_greedy_takes_the_best_token_whatever_the_noise(values: dict[str, Any]) -> None:
    assert {choose(LOGITS, draw(noise, **values)) for noise in (0.0, 0.5, 0.999)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_without_cuts_tokens_are_drawn_by_softmax(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, dim=0).tolist()
    assert share_of_tokens(temperature=temperature) == pytest.approx(expected, abs=1e-3)


def test_top_k_renormalises_over_the_k_best() -> None:
    best = torch.softmax(torch.tensor([2.0, 1.0]), dim=0).tolist()
    assert share_of_tokens(top_k=2) == pytest.approx([0, best[0], 0, best[1], 0], abs=1e-3)


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert share_of_tokens(top_k=50) == pytest.approx(torch.softmax(LOGITS, dim=0).tolist(), abs=1e-3)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for top_p, kept in ((0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (1.0, 4)):
        assert int((cut(probs, top_p, 0.0) > 0).sum()) == kept, top_p


def test_min_p_is_relative_to_the_best_token() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    for min_p, kept in ((0.0, 4), (0.1, 4), (0.2, 3), (0.5, 2), (1.0, 1)):
        assert int((cut(probs, 1.0, min_p) > 0).sum()) == kept, min_p


def test_the_best_token_survives_every_cut() -> None:
    assert share_of_tokens(top_p=1e-9, min_p=1.0) == [0, 1, 0, 0, 0]


def test_penalties_apply_to_tokens_that_occurred_after_the_temperature() -> None:
    scores = penalize(
        LOGITS,
        draw(
            counts={1: 2, 2: 1},
            temperature=0.5,
            repetition_penalty=2.0,
            presence_penalty=0.1,
            frequency_penalty=0.01,
        ),
    )
    assert scores.tolist() == pytest.approx([1.0, 4.0 / 2 - 0.1 - 0.02, -2.0 * 2 - 0.1 - 0.01, 2.0, 0.0])


def test_a_forbidden_token_is_never_chosen() -> None:
    assert choose(LOGITS, draw(forbidden=1, top_k=1)) == 3
    assert 1 not in {choose(LOGITS, draw(i / 100, forbidden=1)) for i in range(100)}


def test_the_logits_of_the_pass_are_left_alone() -> None:
    logits = LOGITS.clone()
    penalize(logits, draw(counts={1: 1}, repetition_penalty=2.0, forbidden=0))
    assert torch.equal(logits, LOGITS)


def test_noise_depends_on_seed_and_position_and_repeats() -> None:
    values = [uniform(seed, position) for seed in range(30) for position in range(30)]
    assert values == [uniform(seed, position) for seed in range(30) for position in range(30)]
    assert len(set(values)) == 900
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("seeds", [range(20_000), [MAX_SEED - 3 * i for i in range(20_000)], [1 << 20] * 20_000])
def test_noise_is_uniform_and_neighbours_are_independent(seeds: Any) -> None:
    # 20,000 draws: the mean of uniform numbers has deviation 0.00204, their lag-1 correlation 0.0071; 5 deviations.
    values = torch.tensor([uniform(seed, position) for position, seed in enumerate(seeds)], dtype=torch.float64)
    assert abs(values.mean() - 0.5) < 5 / math.sqrt(12 * 20_000)
    pairs = torch.stack([values[:-1], values[1:]])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 5 / math.sqrt(20_000)
    counts = torch.histc(values, bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 50  # chi-square, 19 degrees of freedom: p = 0.0001


def test_every_value_out_of_range_is_named_at_once() -> None:
    wrong = SamplingParams(temperature=math.inf, top_k=-1, min_p=1.5, repetition_penalty=0, frequency_penalty=math.nan)
    with pytest.raises(RequestError) as caught:
        wrong.check()
    for name in ("temperature", "top_k", "min_p", "repetition_penalty", "frequency_penalty"):
        assert name in str(caught.value)
