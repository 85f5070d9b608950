"""The price of bounded caches: what the reference engine loses with the same cache, and which models have one."""

from pathlib import Path

import pytest
import torch
from calibrated import engines_perplexity, random_samples, run_pass
from tiny import FAMILIES, tiny_checkpoint
from trtkit.calibration.bounded_attention import takes_bounded_caches
from trtkit.calibration.cache_variants import CacheVariant, bounded_variants, cache_variants
from trtkit.calibration.collect import PassOptions
from trtkit.calibration.price_pass import measure_prices
from trtkit.calibration.scales import ScaleMethod
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.kv_cache.retention import Retention

SAMPLES = random_samples({"a": 100, "b": 90}, seed=11)
SERVED = [family for family in FAMILIES if family not in ("mistral", "gemma2", "gemma3", "gpt2")]
WHOLE = CacheVariant("unquantized", 1024, None)
BOUNDS = {
    "window": Retention(20),
    "sinks": Retention(20, 4),
    "heavy hitters": Retention(12, 4, 10),
    "heavy hitters alone": Retention(3, 0, 20),
}


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_a_price_is_what_the_engine_loses_with_that_cache(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    convert_to(folder, tmp_path / "trt", ConversionOptions(dtype="float32"))
    variants = (WHOLE, *(CacheVariant(name, 0, None, retention) for name, retention in BOUNDS.items()))
    prices = {price.name: price for price in measure_prices(folder, SAMPLES, variants, PassOptions("float32"))}
    for name, kept in BOUNDS.items():
        cache = CacheOptions(
            reuse="off",
            window_tokens=kept.window_tokens,
            sink_tokens=kept.sink_tokens,
            heavy_tokens=kept.heavy_tokens,
        )
        engine = Engine.load(tmp_path / "trt", max_batch_size=1, max_seq_len=128, cache=cache)
        assert prices[name].perplexity == pytest.approx(engines_perplexity(engine, SAMPLES), rel=1e-5), name
        assert abs(prices[name].perplexity / prices["unquantized"].perplexity - 1) > 1e-3, "the bound shows"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_has_the_bounded_caches_that_the_engine_serves(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    convert_to(folder, tmp_path / "trt", ConversionOptions(dtype="float32"))
    cache = CacheOptions(reuse="off", window_tokens=8, sink_tokens=4, heavy_tokens=4)
    try:
        Engine.load(tmp_path / "trt", max_batch_size=1, max_seq_len=32, cache=cache)
        is_served = True
    except InputError as error:
        assert error.code == "KV-WINDOW"
        is_served = False
    assert takes_bounded_caches(read_model_spec(folder)) == is_served == (family in SERVED)


@pytest.mark.parametrize("family", SERVED)
def test_smaller_caches_cost_more_and_whole_ones_nothing(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    variants = (
        WHOLE,
        CacheVariant("all", 0, None, Retention(100)),
        CacheVariant("half", 0, None, Retention(48, 2)),
        CacheVariant("eighth", 0, None, Retention(5, 2)),
        CacheVariant("heavy", 0, None, Retention(3, 2, 2)),
    )
    kl = {price.name: price.kl for price in measure_prices(folder, SAMPLES, variants, PassOptions("float32"))}
    assert kl["all"] < 1e-9
    assert kl["half"] < kl["eighth"]
    assert kl["half"] < kl["heavy"]


def test_bounded_caches_are_priced_by_what_they_keep(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    records = run_pass(folder, tmp_path / "pass", samples=SAMPLES)
    variants = cache_variants(read_model_spec(folder), records, torch.bfloat16, ScaleMethod())
    found = {variant.name: variant for variant in bounded_variants(variants, longest=60)}
    assert list(found) == ["window-30", "heavy-30", "window-15", "heavy-15", "fp8-window-30", "fp8-window-15"]
    whole = variants[0].bytes_per_token
    assert found["window-30"].bytes_per_token == found["heavy-30"].bytes_per_token == whole // 2
    assert found["fp8-window-15"].bytes_per_token == whole // 8
    assert found["window-30"].retention == Retention(26, 4)
    assert found["heavy-30"].retention == Retention(13, 4, 13)
