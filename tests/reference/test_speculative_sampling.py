"""The real engine, draft and target, seeds and cache: the first two tokens follow the target's distribution."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_trtllm import tiny_model, write_checkpoint
from trtkit.acceptance import summarize
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.draft_length import FixedDraftLength
from trtkit.evaluate.sampling.distribution import detectable_distance, make_bins, p_value
from trtkit.reference.draft_target import SpeculativeAnswer, speculate
from trtkit.reference.engine import Engine
from trtkit.reference.proposal import EngineProposer
from trtkit.reference.request import GenerationRequest, Returns
from trtkit.reference.sampling.params import SamplingParams
from trtkit.reference.sampling.sampler import probabilities
from trtkit.reference.sampling.scores import Past, adjust

VOCAB = 7
LEVEL = 1e-4
BATCH = 128
PROMPT = (1, 5, 2)
WAYS = {
    "temperature": SamplingParams(temperature=0.7, top_k=0),
    "penalties and cuts": SamplingParams(top_k=6, top_p=0.95, repetition_penalty=1.3, frequency_penalty=0.2),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    shape = {"vocab_size": VOCAB, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    loaded = {}
    for role, seed in (("target", 0), ("draft", 3), ("narrow draft", 3)):
        folder = write_checkpoint(tiny_model(seed, **shape, **heads), tmp_path_factory.mktemp(role))
        if role == "narrow draft":
            (folder / DRAFT_VOCABULARY_FILE).write_text(json.dumps({"token_ids": [0, 2, 3, 6]}))
        loaded[role] = Engine.load(folder, max_batch_size=BATCH, max_seq_len=32)
    return loaded


def distribution_after(
    target: Engine, token_ids: tuple[int, ...], params: SamplingParams, forbidden: tuple[int, ...] = ()
) -> torch.Tensor:
    request = GenerationRequest("p", token_ids, 1, returns=Returns(generation_logits=True))
    logits = torch.tensor(target.generate(request)[0].generation_logits[0])
    counts = {token: token_ids.count(token) for token in token_ids}
    return probabilities(adjust(logits, params, Past(counts, forbidden)), params)


def joint(target: Engine, params: SamplingParams, forbidden_first: tuple[int, ...] = ()) -> dict[int, float]:
    first = distribution_after(target, PROMPT, params, forbidden_first)
    second = torch.stack([distribution_after(target, (*PROMPT, token), params) for token in range(VOCAB)])
    return dict(enumerate((first[:, None] * second).reshape(-1).tolist()))


def answers(
    engines: dict[str, Engine],
    params: SamplingParams,
    num_samples: int,
    *,
    by_logits: bool,
    draft: str = "draft",
    **changes: int,
) -> list[SpeculativeAnswer]:
    """Each with a seed of its own and a draft length from 1 to 3."""
    proposer = EngineProposer(engines[draft], VOCAB, with_logits=by_logits)
    requests = [GenerationRequest("s", PROMPT, 3, replace(params, seed=seed), **changes) for seed in range(num_samples)]
    lengths = [FixedDraftLength(1 + seed % 3) for seed in range(num_samples)]
    pairs = list(zip(requests, lengths, strict=True))
    chunks = [pairs[start : start + BATCH] for start in range(0, num_samples, BATCH)]
    return [answer for chunk in chunks for answer in speculate(engines["target"], proposer, chunk)]


def check(engines: dict[str, Engine], way: str, num_samples: int, *, by_logits: bool) -> None:
    found = answers(engines, WAYS[way], num_samples, by_logits=by_logits)
    expected = joint(engines["target"], WAYS[way])
    pairs = [answer.token_ids[0] * VOCAB + answer.token_ids[1] for answer in found]
    assert all(expected[pair] > 0 for pair in set(pairs))
    bins = make_bins(expected, num_samples)
    assert p_value(bins.count(pairs), bins.probabilities, np.random.default_rng(0)) > LEVEL
    rate = summarize(outcome for answer in found for outcome in answer.acceptances).acceptance_rate
    assert rate is not None and 0.2 < rate < 0.95, "both kinds of outcome must have been tried"


@pytest.mark.parametrize("by_logits", [True, False], ids=["by logits", "by tokens"])
@pytest.mark.parametrize("way", WAYS)
def test_the_engines_answers_follow_the_target(engines: dict[str, Engine], way: str, by_logits: bool) -> None:
    check(engines, way, 2_000, by_logits=by_logits)


@pytest.mark.parametrize("by_logits", [True, False], ids=["by logits", "by tokens"])
def test_a_minimum_before_the_end_id_is_part_of_both_distributions(engines: dict[str, Engine], by_logits: bool) -> None:
    params = WAYS["temperature"]
    end_id = int(distribution_after(engines["draft"], PROMPT, params).argmax())
    found = answers(engines, params, 1_200, by_logits=by_logits, end_id=end_id, min_new_tokens=1)
    pairs = [answer.token_ids[0] * VOCAB + answer.token_ids[1] for answer in found]
    bins = make_bins(joint(engines["target"], params, (end_id,)), 1_200)
    assert p_value(bins.count(pairs), bins.probabilities, np.random.default_rng(0)) > LEVEL
    assert any(len(answer.token_ids) == 2 for answer in found), "some end where they may"


@pytest.mark.parametrize("by_logits", [True, False], ids=["by logits", "by tokens"])
def test_a_draft_that_knows_some_of_the_tokens_changes_no_distribution(
    engines: dict[str, Engine], by_logits: bool
) -> None:
    params = WAYS["temperature"]
    found = answers(engines, params, 1_200, by_logits=by_logits, draft="narrow draft")
    pairs = [answer.token_ids[0] * VOCAB + answer.token_ids[1] for answer in found]
    bins = make_bins(joint(engines["target"], params), 1_200)
    assert p_value(bins.count(pairs), bins.probabilities, np.random.default_rng(0)) > LEVEL
    assert {token for answer in found for token in answer.token_ids} == set(range(VOCAB))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("by_logits", [True, False], ids=["by logits", "by tokens"])
@pytest.mark.parametrize("way", WAYS)
def test_200_000_of_the_engines_answers_follow_the_target(
    engines: dict[str, Engine], way: str, by_logits: bool
) -> None:
    assert detectable_distance(VOCAB**2, 200_000, LEVEL, np.random.default_rng(0)) < 0.0095
    check(engines, way, 200_000, by_logits=by_logits)


def test_acceptance_by_logits_keeps_more_drafts_than_acceptance_by_tokens(engines: dict[str, Engine]) -> None:
    rates = [
        summarize(
            outcome
            for answer in answers(engines, WAYS["temperature"], 1_000, by_logits=by_logits)
            for outcome in answer.acceptances
        ).acceptance_rate
        or 0.0
        for by_logits in (True, False)
    ]
    assert rates[0] > rates[1] + 0.02
