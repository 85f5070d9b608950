"""Bounded caches: which tokens are seen, against the same rule written out one token at a time, and its price."""

import math
from pathlib import Path

import pytest
import torch
from calibrated import random_samples, run_pass
from tiny import FAMILIES, tiny_checkpoint
from torch import Tensor
from trtkit.calibration.bounded_attention import Bound, probabilities
from trtkit.calibration.cache_variants import CacheVariant, bounded_variants, cache_variants
from trtkit.calibration.collect import PassOptions
from trtkit.calibration.price_pass import measure_prices
from trtkit.checkpoints.model_spec import read_model_spec

SAMPLES = random_samples({"a": 60, "b": 50}, seed=11)


def causal_logits(num_tokens: int, seed: int = 0) -> Tensor:
    """Two KV heads of three query heads each."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, num_tokens, num_tokens, generator=random) * 2
    return logits.masked_fill(torch.ones(num_tokens, num_tokens).triu(1).bool(), float("-inf"))


def seen(weights: Tensor) -> list[list[set[int]]]:
    """For each KV head and token, the tokens that got any attention."""
    return [[set(torch.nonzero(row[0]).flatten().tolist()) for row in head.transpose(0, 1)] for head in weights]


def test_a_window_sees_sinks_and_the_most_recent_tokens() -> None:
    for head in seen(probabilities(causal_logits(10), Bound(window_tokens=3, sink_tokens=2))):
        assert head[9] == {0, 1, 7, 8, 9}
        assert head[3] == {0, 1, 2, 3}
        assert head[0] == {0}


def test_heavy_hitters_are_those_that_got_most_attention_so_far() -> None:
    """Against the rule with lists and sums, head by head."""
    logits, bound = causal_logits(14, seed=1), Bound(window_tokens=3, sink_tokens=1, heavy_tokens=2)
    weights = probabilities(logits, bound)
    for head, tokens in enumerate(seen(weights)):
        heavy: set[int] = set()
        got = [0.0] * 14
        for token in range(14):
            visible = {j for j in range(token + 1) if j < 1 or j > token - 3} | heavy
            assert tokens[token] == visible
            assert len(visible) <= bound.budget_tokens
            for query in range(3):
                row = {j: math.exp(float(logits[head, query, token, j])) for j in visible}
                for j, value in row.items():
                    got[j] += value / sum(row.values())
            leaving = token + 1 - 3
            if leaving >= 1:
                heavy.add(leaving)
                if len(heavy) > 2:
                    heavy.discard(min(heavy, key=lambda j: got[j]))
    assert seen(weights)[0] != seen(weights)[1], "heads choose for themselves"


def test_a_bound_that_keeps_everything_changes_nothing() -> None:
    logits = causal_logits(9)
    for bound in (None, Bound(9), Bound(4, 2, 3)):
        assert torch.allclose(probabilities(logits, bound), logits.softmax(-1), atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_every_family_smaller_caches_cost_more_and_whole_ones_nothing(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    whole = CacheVariant("unquantized", 1024, None)
    variants = (
        whole,
        CacheVariant("all", 0, None, Bound(60)),
        CacheVariant("half", 0, None, Bound(28, 2)),
        CacheVariant("eighth", 0, None, Bound(5, 2)),
        CacheVariant("heavy", 0, None, Bound(3, 2, 2)),
    )
    kl = {price.name: price.kl for price in measure_prices(folder, SAMPLES, variants, PassOptions("float32"))}
    assert kl["all"] < 1e-9
    assert kl["half"] < kl["eighth"], "a family's own sliding window may be shorter than the half"
    assert kl["half"] < kl["heavy"]


def test_bounded_caches_are_priced_by_what_they_keep(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    records = run_pass(folder, tmp_path / "pass", samples=SAMPLES)
    variants = cache_variants(read_model_spec(folder), records, torch.bfloat16)
    found = {variant.name: variant for variant in bounded_variants(variants, longest=60)}
    assert list(found) == ["window-30", "heavy-30", "window-15", "heavy-15", "fp8-window-30", "fp8-window-15"]
    whole = variants[0].bytes_per_token
    assert found["window-30"].bytes_per_token == found["heavy-30"].bytes_per_token == whole // 2
    assert found["fp8-window-15"].bytes_per_token == whole // 8
    assert found["heavy-30"].bound == Bound(13, 4, 13)
