"""What the caches cost on the real model: perplexity by format, and on a stream that outgrows a window."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench.bench_kv_cache import Model, measure_formats, measure_stream, text_ids
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
    assert cost["fp8, scale 1"] < 0.01
    assert cost["fp8"] < 0.02
    assert cost["int8"] < 0.03
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
