"""One row of logits, one token: penalties, cuts, draws."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from trtkit.errors import RequestError
from trtkit.reference.sampling.noise import Purpose, derived_seed, uniform
from trtkit.reference.sampling.params import MAX_SEED, SamplingParams
from trtkit.reference.sampling.sampler import choose, cut, invert, probabilities
from trtkit.reference.sampling.scores import Past, adjust

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.0])


def chosen(noise: float = 0.0, past: Past = Past(), **values: Any) -> int:  # noqa: B008 (frozen)
    params = SamplingParams(**{"top_k": 0, **values})
    return int(choose(adjust(LOGITS, params, past), params, noise))


def share_of_tokens(**values: Any) -> list[float]:
    """How often each token is chosen over a fine grid of noise."""
    grid = 2000
    counts = Counter(chosen((i + 0.5) / grid, **values) for i in range(grid))
    return [counts[token] / grid for token in range(len(LOGITS))]


@pytest.mark.parametrize("values", [{"top_k": 1}, {"temperature": 0.0}])
def test_greedy_takes_the_best_token_whatever_the_noise(values: dict[str, Any]) -> None:
    assert {chosen(noise, **values) for noise in (0.0, 0.5, 0.999)} == {1}


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


@pytest.mark.parametrize(
    "values",
    [{}, {"top_k": 1}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3, "temperature": 0.7}, {"top_k": 4, "top_p": 0.7}],
)
def test_the_stated_distribution_is_the_one_that_is_drawn_from(values: dict[str, Any]) -> None:
    params = SamplingParams(**{"top_k": 0, **values})
    stated = probabilities(adjust(LOGITS, params, Past()), params)
    assert float(stated.sum()) == pytest.approx(1, abs=1e-12)
    assert share_of_tokens(**values) == pytest.approx(stated.tolist(), abs=1e-3)


def test_many_rows_are_drawn_as_each_alone() -> None:
    rows = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    noise = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    for params in (SamplingParams(top_k=0), SamplingParams(top_k=3, top_p=0.8), SamplingParams()):
        together = choose(rows, params, noise)
        assert together.tolist() == [int(choose(row, params, float(u))) for row, u in zip(rows, noise, strict=True)]
        one_by_one = torch.stack([probabilities(row, params) for row in rows])
        assert torch.equal(probabilities(rows, params), one_by_one)


def test_a_token_of_weight_zero_is_not_drawn_at_either_end() -> None:
    weights = torch.tensor([0.0, 0.25, 0.75, 0.0])
    assert [int(invert(weights, noise)) for noise in (0.0, 0.24, 0.25, 1 - 2**-53)] == [1, 1, 2, 2]


def test_bias_then_temperature_then_penalties_on_tokens_that_occurred() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=0, repetition_penalty=2.0, presence_penalty=0.1, frequency_penalty=0.01
    )
    past = Past(counts={1: 2, 2: 1}, bias=torch.tensor([0.25, 0.0, 0.0, -0.5, 0.0]))
    expected = [1.5, 4.0 / 2 - 0.1 - 0.02, -2.0 * 2 - 0.1 - 0.01, 1.0, 0.0]
    assert adjust(LOGITS, params, past).tolist() == pytest.approx(expected)


def test_a_forbidden_token_is_never_chosen() -> None:
    past = Past(forbidden_ids=(1, 3))
    assert chosen(past=past, top_k=1) == 0
    assert {chosen(i / 100, past) for i in range(100)} == {0, 2, 4}


def test_the_logits_of_the_pass_are_left_alone() -> None:
    logits = LOGITS.clone()
    adjust(logits, SamplingParams(repetition_penalty=2.0, temperature=0.3), Past({1: 1}, (0,), torch.ones(5)))
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


def test_numbers_for_different_purposes_are_independent() -> None:
    # As above: 20,000 pairs, 5 deviations.
    drawn = [[uniform(seed, 3, purpose) for seed in range(20_000)] for purpose in Purpose]
    table = torch.corrcoef(torch.tensor(drawn, dtype=torch.float64)) - torch.eye(3)
    assert table.abs().max() < 5 / math.sqrt(20_000)


def test_sequences_of_one_request_have_different_seeds_and_the_first_its_own() -> None:
    assert derived_seed(7, 0) == 7
    assert len({derived_seed(seed, index) for seed in (0, 7, MAX_SEED) for index in range(10)}) == 30


def test_every_value_out_of_range_is_named_at_once() -> None:
    wrong = SamplingParams(temperature=math.inf, top_k=-1, min_p=1.5, repetition_penalty=0, frequency_penalty=math.nan)
    with pytest.raises(RequestError) as caught:
        wrong.check()
    for name in ("temperature", "top_k", "min_p", "repetition_penalty", "frequency_penalty"):
        assert name in str(caught.value)


def test_a_temperature_near_zero_is_greedy() -> None:
    assert {chosen(noise / 10, temperature=1e-38) for noise in range(10)} == {1}


@pytest.mark.parametrize(
    ("past", "values"),
    [
        (Past(forbidden_ids=(0, 1, 2, 3, 4)), {}),
        (Past(bias=torch.full((5,), 3e38)), {"temperature": 0.5}),
        (Past(counts={1: 1}), {"repetition_penalty": 1e-40}),
        (Past(counts=dict.fromkeys(range(5), 1)), {"presence_penalty": 1e39}),
    ],
)
def test_a_row_with_no_token_left_is_refused(past: Past, values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="REQ-SCORES"):
        chosen(past=past, **values)
