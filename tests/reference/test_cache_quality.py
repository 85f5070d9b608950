"""What the caches cost on the real model: perplexity by format, on a stream beyond a window, what is found again.

The limits are what was measured, plus two standard errors; docs/numerics.md says what limits FP8.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.bench_kv_cache import Model, cut, measure_formats, measure_limits, measure_stream, text_ids
from bench.bench_retrieval import measure
from tokenizers import Tokenizer
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def ids(demo_pair: dict[str, Path]) -> list[int]:
    return text_ids(demo_pair["target"])


@pytest.fixture(scope="module")
def model(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("converted") / "target"
    convert_to(demo_pair["target"], folder, ConversionOptions(dtype="bfloat16"))
    yield Model(folder)


def perplexities(stream: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: math.exp(float(nats.mean())) for name, nats in stream.items()}


def test_a_window_without_sinks_loses_the_text_and_with_sinks_does_not(model: Model, ids: list[int]) -> None:
    found = perplexities(measure_stream(model, ids[:700], sinks=4, window=28))
    assert found["sinks + window"] < 1.1 * found["recomputed"]
    assert found["window"] > 2 * found["recomputed"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_formats_cost_what_the_page_says(demo_pair: dict[str, Path], ids: list[int], tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in measure_formats(demo_pair["target"], ids, 8, tmp_path)}
    cost = {name: figure.perplexity / figures["bfloat16"].perplexity - 1 for name, figure in figures.items()}
    assert cost["int8"] < 0.01
    assert cost["int8"] < cost["int8, merged"] < 0.03, "TensorRT-LLM has one scale for keys and values"
    assert max(cost["fp8, scale 1"], cost["fp8, merged"], cost["fp8"]) < 0.02
    assert cost["int4"] < 0.10
    assert [figures[name].bytes_per_token for name in ("bfloat16", "fp8", "int8", "int4")] == [
        23040,
        11520,
        11520,
        7200,
    ]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_sinks_hold_over_twenty_thousand_tokens(model: Model, ids: list[int]) -> None:
    found = perplexities(measure_stream(model, ids[:20_000], sinks=4, window=252))
    assert found["sinks + window"] < 1.1 * found["recomputed"]
    assert found["window"] > 1.5 * found["recomputed"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_fp8_is_limited_by_its_mantissa(model: Model, ids: list[int]) -> None:
    cost = {figure.name: figure.perplexity for figure in measure_limits(model, cut(ids, 16)[8:])}
    exact = cost["bfloat16"]
    assert cost["4 bits"] / exact - 1 < 0.01
    assert cost["4 bits"] - exact < 0.5 * (cost["3 bits"] - exact), "any exponent, and still as bad as e4m3"


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("needle", ["passkey", "animal"])
def test_heavy_hitters_find_what_a_window_of_the_same_size_lost(
    needle: Any, demo_pair: dict[str, Path], tmp_path: Path
) -> None:
    convert_to(demo_pair["target"], tmp_path / "target", ConversionOptions(dtype="bfloat16"))
    tokenizer = Tokenizer.from_file(str(demo_pair["target"] / "tokenizer.json"))
    found = measure(tmp_path / "target", tokenizer, needle, 12)
    heavy, window = found["heavy hitters"], found["sinks + window"]
    assert heavy.nats + 3 * math.hypot(heavy.error, window.error) < window.nats
    assert window.num_right == 0
