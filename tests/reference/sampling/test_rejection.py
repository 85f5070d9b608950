"""Speculative sampling follows the target's distribution, and a wrong rule does not: exact tests on table models.

200,000 samples of the first two tokens in 36 cells. At the level used, a total variation of 0.009 from the target's
joint distribution is found with a probability of 0.9, whatever its direction (evaluate/sampling/distribution.py).
"""

import numpy as np
import pytest
import torch
from speculative_tables import VOCAB, Rule, Speculation, Table
from torch import Tensor
from trtkit.evaluate.sampling.distribution import detectable_distance, make_bins, p_value
from trtkit.reference.sampling.params import SamplingParams
from trtkit.reference.sampling.rejection import accepts, reaches, recover
from trtkit.reference.sampling.sampler import choose, invert, probabilities

NUM_SAMPLES = 200_000
LEVEL = 1e-4
WAYS = {
    "temperature 1": SamplingParams(top_k=0),
    "temperature 0.7": SamplingParams(temperature=0.7, top_k=0),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_k=0, top_p=0.8),
    "min-p, warm": SamplingParams(temperature=1.3, top_k=0, min_p=0.15),
    "all cuts": SamplingParams(temperature=0.7, top_k=4, top_p=0.9, min_p=0.02),
}
PENALISED = SamplingParams(top_k=0, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.4)
TARGET = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
DRAFTS = {
    "good": TARGET + 0.3 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2)),
    "bad": 1.5 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3)),
    "adversarial": -TARGET,
}
CASES = [(way, draft) for way in WAYS for draft in DRAFTS]


def speculation(params: SamplingParams, draft: str, draft_len: int, rule: Rule = Rule()) -> Speculation:  # noqa: B008
    return Speculation(Table(TARGET, params), Table(DRAFTS[draft], params), draft_len, rule)


def p_of(case: Speculation, seed: int = 0) -> float:
    """The p-value of the first two tokens; a pair that the target cannot say counts as impossible."""
    tokens = case.first_two_tokens(NUM_SAMPLES, torch.Generator().manual_seed(seed))
    pairs = (tokens[:, 0] * VOCAB + tokens[:, 1]).numpy()
    joint = case.joint()
    if any(joint[int(pair)] == 0 for pair in np.unique(pairs)):
        return 0.0
    bins = make_bins(joint, NUM_SAMPLES)
    return p_value(bins.count(pairs.tolist()), bins.probabilities, np.random.default_rng(seed))


def test_the_test_would_find_small_deviations() -> None:
    assert detectable_distance(VOCAB**2, NUM_SAMPLES, LEVEL, np.random.default_rng(0)) < 0.009


@pytest.mark.parametrize(("way", "draft"), CASES, ids=lambda value: str(value))
def test_the_first_two_tokens_follow_the_target(way: str, draft: str) -> None:
    draft_len = 1 + CASES.index((way, draft)) % 5  # every length with every kind of draft and of sampling, see below
    assert p_of(speculation(WAYS[way], draft, draft_len)) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("draft_len", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("way", "draft"), CASES)
def test_the_first_two_tokens_follow_the_target_for_every_draft_length(way: str, draft: str, draft_len: int) -> None:
    assert p_of(speculation(WAYS[way], draft, draft_len), seed=draft_len) > LEVEL


@pytest.mark.parametrize("draft", DRAFTS)
def test_penalties_are_part_of_both_distributions(draft: str) -> None:
    assert p_of(speculation(PENALISED, draft, 2)) > LEVEL


def accepts_upside_down(target: Tensor, draft: Tensor, token_ids: Tensor, noise: Tensor | float) -> Tensor:
    return accepts(draft, target, token_ids, noise)


def recover_from_the_target(target: Tensor, draft: Tensor, noise: Tensor | float) -> Tensor:
    return invert(target, noise)


def accepts_at_half(target: Tensor, draft: Tensor, token_ids: Tensor, noise: Tensor | float) -> Tensor:
    return reaches(target, draft, token_ids, 0.5)


def accepts_an_equal_draw(target: Tensor, draft: Tensor, token_ids: Tensor, noise: Tensor | float) -> Tensor:
    """TensorRT-LLM without draft logits: the target draws for itself, and draws again when that is another token."""
    return invert(target, noise) == token_ids


WRONG = {
    "accept by q / p": Rule(accepts=accepts_upside_down),
    "replace from p instead of the residual": Rule(recover=recover_from_the_target),
    "accept from a fixed threshold": Rule(accepts=accepts_at_half),
    "compare with a draw, then draw anew": Rule(accepts=accepts_an_equal_draw, recover=recover_from_the_target),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rule_is_caught_by_the_same_test(wrong: str, draft: str) -> None:
    assert p_of(speculation(WAYS["temperature 0.7"], draft, 2, WRONG[wrong])) < LEVEL


def test_draft_probabilities_without_the_drafts_own_temperature_are_caught() -> None:
    """TensorRT-LLM with draft logits takes their plain softmax, whatever temperature and cuts the draft drew under."""
    drawn, believed = WAYS["temperature 0.7"], WAYS["temperature 1"]

    class Believed(Table):
        def probabilities(self, past: Tensor) -> Tensor:
            return probabilities(Table(DRAFTS["bad"], believed).scores(past), believed)

    case = Speculation(Table(TARGET, drawn), Believed(DRAFTS["bad"], drawn), 2)
    assert p_of(case) < LEVEL


def test_acceptance_is_as_high_as_any_exact_rule_allows() -> None:
    params = WAYS["temperature 1"]
    target, draft = (probabilities(logits, params) for logits in (TARGET, DRAFTS["bad"]))
    rows = 100_000
    generator = torch.Generator().manual_seed(0)
    noise = [torch.rand(rows, generator=generator, dtype=torch.float64) for _ in range(2)]
    for p, q, logits in zip(target, draft, DRAFTS["bad"], strict=True):
        drafted = choose(logits.expand(rows, VOCAB), params, noise[0])
        kept = accepts(p.expand(rows, VOCAB), q.expand(rows, VOCAB), drafted, noise[1]).double().mean()
        assert float(kept) == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.008)  # 5 deviations


def test_equal_distributions_reject_nothing_and_leave_something_to_recover_from() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    for noise in (0.0, 0.5, 1 - 2**-53):
        assert bool(accepts(p, p, torch.tensor(1), noise))
    assert int(recover(p, p, 0.3)) == 1


def test_the_residual_never_gives_what_the_draft_prefers() -> None:
    p, q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    assert {int(recover(p, q, noise / 100)) for noise in range(100)} == {2}
