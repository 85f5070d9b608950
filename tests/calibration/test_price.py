"""The price of KV precisions: against a whole model, on planted outliers, on the demo pair; comparing scales."""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrated import engines_perplexity, random_samples, run_pass, whole_model
from matplotlib.text import Text
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, tiny_checkpoint
from trtkit.calibration.cache_variants import CacheVariant, bounded_variants, cache_variants
from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.collect import PassOptions
from trtkit.calibration.compare import compare_scales
from trtkit.calibration.pass_files import read_records
from trtkit.calibration.price import NoPrice, Price, PriceRow
from trtkit.calibration.price_pass import measure_prices
from trtkit.calibration.price_plot import draw_prices, price_figure
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.samples import Sample, SampleOptions, hold_out, make_samples
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.texts import CalibrationText, shipped_texts
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.cli.calibrate import render
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.formats import Int4

HELD_OUT = random_samples({"a": 60, "b": 50}, seed=11)
TEXTS = [CalibrationText(s.name, token_ids=s.token_ids) for s in random_samples({f"t{n}": 40 for n in range(9)})]


def prices_of(
    folder: Path, work: Path, held_out: list[Sample], seen: list[Sample], dtype: str = "float32"
) -> dict[str, Price]:
    records = run_pass(folder, work, samples=seen, dtype=dtype)
    variants = cache_variants(read_model_spec(folder), records, getattr(torch, dtype), ScaleMethod())
    return priced(measure_prices(folder, held_out, variants, PassOptions(dtype)))


def priced(rows: Sequence[PriceRow]) -> dict[str, Price]:
    """By name; all have one."""
    assert not [row for row in rows if not isinstance(row, Price)]
    return {row.name: row for row in rows if isinstance(row, Price)}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unquantized_perplexity_is_that_of_the_whole_model(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    found = prices_of(folder, tmp_path / "pass", HELD_OUT, HELD_OUT)["unquantized"]
    model, losses = whole_model(folder), []
    for sample in HELD_OUT:
        ids = torch.tensor([sample.token_ids])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert found.kl == found.perplexity_error == 0


@pytest.mark.parametrize("tied", [False, True])
def test_a_draft_is_priced_by_the_tokens_that_it_can_propose(tied: bool, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", tie_word_embeddings=tied)
    kept = [*range(5, 40), *range(200, 300), 319]
    (folder / "draft_vocabulary.json").write_text(json.dumps({"token_ids": kept}))
    found = prices_of(folder, tmp_path / "pass", HELD_OUT, HELD_OUT)
    model, losses = whole_model(folder), []
    rows = torch.tensor(kept)
    for sample in HELD_OUT:
        ids = torch.tensor(sample.token_ids)
        with torch.inference_mode():
            scores = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1, rows], -1)
        losses += [-float(scores[t, rows == token]) for t, token in enumerate(ids[1:]) if token in rows]
    assert 20 < len(losses) < sum(len(sample.token_ids) for sample in HELD_OUT) - 20
    assert found["unquantized"].perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert 0 < found["int8"].kl < found["int4"].kl


def test_a_draft_that_can_propose_none_of_the_texts_has_no_price(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    (folder / "draft_vocabulary.json").write_text('{"token_ids": [0, 1]}')
    (row,) = measure_prices(folder, HELD_OUT, (CacheVariant("unquantized", 0, None),), PassOptions("float32"))
    assert isinstance(row, NoPrice) and row.code == "CALIB-TINY"


def test_the_error_of_a_perplexity_is_that_of_its_differences_token_by_token(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    noisy = CacheVariant("noisy", 0, lambda _, k, v: (k.mul(4).round().div(4), v))
    whole = CacheVariant("unquantized", 0, None)
    exact, price = priced(measure_prices(folder, HELD_OUT, (whole, noisy), PassOptions("float32"))).values()
    differences = []
    for sample in HELD_OUT:
        pair = list(priced(measure_prices(folder, [sample], (whole, noisy), PassOptions("float32"))).values())
        differences.append(math.log(pair[1].perplexity / pair[0].perplexity))
    assert 0 < price.perplexity_error < abs(price.perplexity)
    lengths = [len(sample.token_ids) - 1 for sample in HELD_OUT]
    mean = sum(d * n for d, n in zip(differences, lengths, strict=True)) / sum(lengths)
    assert math.log(price.perplexity / exact.perplexity) == pytest.approx(mean, rel=1e-6)
    # A tenth of the tokens leaves an error of sqrt(10) times as much.
    short = [
        Sample(sample.name, sample.token_ids[: max(3, n // 10)]) for sample, n in zip(HELD_OUT, lengths, strict=True)
    ]
    few = priced(measure_prices(folder, short, (whole, noisy), PassOptions("float32")))["noisy"]
    assert 1 < few.perplexity_error / price.perplexity_error < 10


def test_a_perplexity_beyond_all_numbers_is_a_row_without_a_price(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 1e4
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (row,) = measure_prices(folder, HELD_OUT, (CacheVariant("unquantized", 7, None),), PassOptions("float32"))
    assert isinstance(row, NoPrice)
    assert row.cause.startswith("tokens cost ") and row.cause.endswith(" nats each: a perplexity beyond all numbers")


def nan_values(_: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return keys, values * math.nan


def test_a_cache_that_ends_in_nan_is_a_row_and_the_others_are_priced_as_without_it(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    whole, noisy = CacheVariant("unquantized", 9, None), CacheVariant("noisy", 8, lambda _, k, v: (k.round(), v))
    torn = CacheVariant("torn", 7, lambda n, k, v: nan_values(n, k, v) if n == 1 else (k, v))
    late = CacheVariant("late", 6, lambda n, k, v: nan_values(n, k, v) if n == 1 and k.shape[2] == 50 else (k, v))
    rows = measure_prices(folder, HELD_OUT, (whole, torn, noisy, late), PassOptions("float32"))
    expected = measure_prices(folder, HELD_OUT, (whole, noisy), PassOptions("float32"))
    assert (rows[0], rows[2]) == expected
    assert rows[1] == NoPrice("torn", 7, "layer 1 puts out NaN or Inf while the text 'a' runs", "CALIB-NONFINITE")
    assert rows[3] == NoPrice("late", 6, "layer 1 puts out NaN or Inf while the text 'b' runs", "CALIB-NONFINITE")


def test_logits_that_are_no_numbers_are_a_row_too(tmp_path: Path) -> None:
    """States that float16 holds, and logits that it does not."""
    folder = tiny_checkpoint(tmp_path / "hf", dtype="float16")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.full_like(weights["lm_head.weight"], 6e4)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    variants = (CacheVariant("unquantized", 0, None), CacheVariant("same", 0, lambda _, k, v: (k, v)))
    first, second = measure_prices(folder, HELD_OUT, variants, PassOptions("float16"))
    assert isinstance(first, NoPrice) and isinstance(second, NoPrice)
    assert first.cause == second.cause == "the logits are NaN or Inf while the text 'a' runs"


def test_without_the_unquantized_one_there_is_nothing_to_hold_the_others_against(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= math.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    variants = (CacheVariant("unquantized", 0, None), CacheVariant("zeros", 0, lambda _, k, v: (k, v.zero_())))
    first, second = measure_prices(folder, HELD_OUT, variants, PassOptions("float32"))
    assert isinstance(first, NoPrice) and first.cause.startswith("layer 1 puts out NaN or Inf")
    assert isinstance(second, NoPrice)
    assert second.cause == f"there is nothing to hold it against: with the cache unquantized, {first.cause}"


def test_the_command_shows_draws_and_writes_the_rows_that_have_a_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    monkeypatch.setattr(Int4, "decode", lambda self, layer, parts: torch.full((len(parts[0]), 2, 2, 16), math.nan))
    report = calibrate(folder, tmp_path / "out", CalibrationOptions("float32", price=True), TEXTS)
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "report.json").read_text())["prices"]}
    assert len(rows) == len(report.prices) == 14
    assert [name for name, row in rows.items() if row["code"]] == ["int4"]
    assert {frozenset(row) for row in rows.values()} == {frozenset(rows["fp8"])}
    assert rows["int4"]["perplexity"] is rows["int4"]["kl"] is rows["int4"]["perplexity_error"] is None
    cause = rows["int4"]["cause"]
    assert cause.startswith("layer 0 puts out NaN or Inf while the text 't")
    shown = io.StringIO()
    Console(file=shown, width=200).print(render("target", report))
    (line,) = [line for line in shown.getvalue().splitlines() if line.split()[:1] == ["int4"]]
    assert f"CALIB-NONFINITE: {cause}" in line
    assert "fp8-unit" in shown.getvalue()
    axes = price_figure(report.prices).axes[0]
    assert "int4" in axes.get_title() and "int4" not in [text.get_text() for text in axes.texts]
    assert len(axes.texts) == 13


def test_a_plot_without_any_price_is_drawn_all_the_same(tmp_path: Path) -> None:
    draw_prices([NoPrice("unquantized", 9, "NaN")], tmp_path / "price.png")
    assert (tmp_path / "price.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("head_dim", [48, 80])
def test_heads_that_int4_groups_do_not_fill_have_no_such_row(head_dim: int, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", head_dim=head_dim)
    prices = prices_of(folder, tmp_path / "pass", HELD_OUT, HELD_OUT)
    assert "int4" not in prices
    assert 0 < prices["int8"].kl < prices["int4-groups"].kl


@pytest.mark.parametrize(("longest", "names"), [(8, []), (12, [6]), (24, [12, 6]), (248, [124, 62])])
def test_a_bounded_cache_keeps_as_many_tokens_as_its_name_says(longest: int, names: list[int]) -> None:
    found = bounded_variants([CacheVariant("unquantized", 1000, None)], longest)
    assert [variant.name for variant in found] == [f"{kind}-{n}" for n in names for kind in ("window", "heavy")]
    for variant in found:
        kept, budget = variant.retention, int(variant.name.rpartition("-")[2])
        assert kept.window_tokens is not None and kept.window_tokens + kept.sink_tokens + kept.heavy_tokens == budget
        assert variant.bytes_per_token == 1000 * budget // longest


def test_bytes_per_token_count_layers_heads_and_scales(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    prices = prices_of(folder, tmp_path / "pass", HELD_OUT, HELD_OUT)
    values = 2 * 3 * 2 * 16
    assert prices["unquantized"].bytes_per_token == 4 * values  # float32
    assert prices["fp8"].bytes_per_token == prices["int8"].bytes_per_token == values
    assert prices["int4"].bytes_per_token == values // 2 + 2 * 3 * 2 * 4  # a step and a zero for each head
    assert prices["int4-groups"].bytes_per_token == values // 2


def test_finer_precisions_stay_closer(tmp_path: Path) -> None:
    prices = prices_of(tiny_checkpoint(tmp_path / "hf"), tmp_path / "pass", HELD_OUT, HELD_OUT)
    assert 0 < prices["int8"].kl < prices["int4"].kl
    assert 0 < prices["fp8"].kl < prices["int4"].kl
    assert prices["int4"].kl < prices["int4-groups"].kl < 10 * prices["int4"].kl


@pytest.mark.parametrize("factor", [2.0**-12, 40.0])
def test_calibrated_fp8_is_never_worse_than_scale_one(factor: float, tmp_path: Path) -> None:
    """Values too small for the scale 1.0 round to zero; values beyond 448 saturate. Calibration mends both."""
    folder = tiny_checkpoint(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    for layer in range(3):
        # Values times f, output projection divided by f: the same model, other numbers in the cache.
        tensors[f"model.layers.{layer}.self_attn.v_proj.weight"] *= factor * (300 if factor > 1 else 1)
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"] /= factor * (300 if factor > 1 else 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    prices = prices_of(folder, tmp_path / "pass", HELD_OUT, HELD_OUT)
    assert prices["fp8-separate"].kl <= prices["fp8"].kl * 1.5
    assert prices["fp8"].kl < prices["fp8-unit"].kl / 2
    assert prices["fp8"].perplexity <= prices["fp8-unit"].perplexity


def test_keeping_the_cache_is_right_for_a_planted_key_bias(tmp_path: Path) -> None:
    """What the outlier report advises ("keep") has the measured effect: FP8 loses far more than without the bias."""
    clean, planted = tiny_checkpoint(tmp_path / "clean", "qwen2"), tiny_checkpoint(tmp_path / "planted", "qwen2")
    tensors = load_file(planted / "model.safetensors")
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.k_proj.bias"][16 + 7] = 300.0
    save_file(tensors, planted / "model.safetensors", {"format": "pt"})
    before = prices_of(clean, tmp_path / "a", HELD_OUT, HELD_OUT)
    after = prices_of(planted, tmp_path / "b", HELD_OUT, HELD_OUT)
    assert after["fp8"].kl > 10 * before["fp8"].kl
    assert after["unquantized"].kl == 0


@pytest.mark.demo
def test_calibrated_fp8_is_never_worse_than_scale_one_on_the_demo_pair(
    demo_pair: dict[str, Path], tmp_path: Path
) -> None:
    for role, folder in demo_pair.items():
        samples = make_samples(shipped_texts(), folder, 49152, SampleOptions(samples=16, max_len=128))
        seen, held_out = samples[:12], samples[12:]
        prices = prices_of(folder, tmp_path / role, held_out, seen, "bfloat16")
        fp8, unit = prices["fp8"], prices["fp8-unit"]
        # Nothing of the demo pair under- or overflows at 1.0, so the two differ by chance alone: two standard errors.
        chance = 2 * math.hypot(fp8.perplexity_error, unit.perplexity_error)
        assert fp8.perplexity <= unit.perplexity + chance, role
        assert chance < 0.05 * unit.perplexity, "a few hundred tokens tell this much"
        assert fp8.kl < min(0.02, 1.1 * unit.kl), role


def test_an_eighth_of_the_samples_is_held_out() -> None:
    samples = random_samples({f"{number}": 9 for number in range(17)})
    seen, held_out = hold_out(samples)
    assert (len(seen), len(held_out)) == (15, 2)
    assert seen + held_out == samples


def test_a_calibration_reports_prices_when_asked(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    report = calibrate(folder, tmp_path / "out", CalibrationOptions("float32", price=True), TEXTS)
    names = [price.name for price in report.prices]
    assert names[:2] == ["unquantized", "fp8-unit"]
    assert {"window-20", "heavy-10", "fp8-window-10"} <= set(names)
    assert (tmp_path / "out" / "price.png").read_bytes().startswith(b"\x89PNG")
    single = CalibrationOptions("float32", samples=SampleOptions(256, 1), price=True)
    with pytest.raises(InputError, match=r"CALIB-TINY: [0-9]+ different samples are too few, or too short"):
        calibrate(folder, tmp_path / "short", single, TEXTS)
    with pytest.raises(InputError, match="leave out --price"):
        calibrate(folder, tmp_path / "few", CalibrationOptions("float32", price=True), [
            CalibrationText("one", token_ids=tuple(range(3, 203)))
        ])  # fmt: skip


def test_scales_are_compared_layer_by_layer() -> None:
    differences = compare_scales({0: (0.5, 1.0), 1: (2.0,), 2: ()}, {0: (1.1,), 1: (8.0,), 3: (1.0,)})
    assert [d.layer for d in differences] == [0, 1, 2, 3]
    assert [d.factor for d in differences] == [1.1, 4.0, None, None]


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_a_price_is_what_the_reference_engine_loses_with_that_cache(kind: Any, tmp_path: Path) -> None:
    """The calibrated checkpoint in the engine, by the logits of its prompts."""
    folder = tiny_checkpoint(tmp_path / "hf")
    scales = ScaleOptions(ScaleMethod("amax"), kind)  # powers of two make no difference between shared and separate
    report = calibrate(folder, tmp_path / "calibration", CalibrationOptions("float32", scales=scales), TEXTS)
    options = ConversionOptions(dtype="float32", kv_cache_dtype=kind, calibration=report.out / "calibration.json")
    convert_to(folder, tmp_path / "trt", options)
    engine = Engine.load(tmp_path / "trt", max_batch_size=1, max_seq_len=128, num_threads=1)
    records = read_records(report.out / "measured")
    variants = cache_variants(read_model_spec(folder), records, torch.float32, scales.method)
    prices = priced(measure_prices(folder, HELD_OUT, variants, PassOptions("float32")))
    engines = engines_perplexity(engine, HELD_OUT)
    own = prices[f"{kind}-separate"].perplexity
    assert abs(own - engines) < abs(own - prices["unquantized"].perplexity) / 50
    assert abs(own - engines) < abs(prices[kind].perplexity - engines), (
        "the engine has a scale for keys and one for values"
    )


def test_the_names_in_the_plot_do_not_cover_each_other() -> None:
    near = [Price(f"fp8-window-{n}", 100 if n % 3 else 112, 650.0 + n / 100, 0.1, 1.0) for n in range(9)]
    figure = price_figure([Price("unquantized", 384, 632.0, 0.0), *near, Price("int4-groups", 96, 2000.0, 1.0, 20.0)])
    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without the line to the point
    assert len(boxes) == 11
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
    assert all(figure.bbox.contains(box.x1, box.y1) for box in boxes)
