"""Planted outliers: found, named, and the advice for them lowers the error that is measured."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import random_samples, run_pass, whole_model
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from torch import Tensor
from trtkit.calibration.cache_variants import CacheVariant, cache_variants
from trtkit.calibration.collect import PassOptions, collect
from trtkit.calibration.errors import input_errors, measure_layer, smoothing_factors
from trtkit.calibration.heat_map import draw_heat_map, heat_map_figure, noise_grid, ratio_grid, tensor_kinds
from trtkit.calibration.outliers import LayerOutliers, describe, judge_layer, overall_cache_advice
from trtkit.calibration.pass_files import read_records
from trtkit.calibration.price_pass import measure_prices
from trtkit.calibration.records import LayerRecord
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.statistics import TensorStatistics
from trtkit.checkpoints.model_spec import read_model_spec

TEXTS = random_samples({f"text-{number}": 64 for number in range(8)})


def judged(folder: Path, out: Path) -> list[LayerOutliers]:
    out.mkdir()
    collect(folder, TEXTS, out, PassOptions("float32"), measure_layer)
    return [judge_layer(record, "fp8", amax_scale(record, 448)) for record in read_records(out)]


def amax_scale(record: LayerRecord, largest_code: float) -> float:
    return max(record.keys.amax, record.values.amax) / largest_code


def plant(folder: Path, name: str, index: Any, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name][index] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture
def key_bias(tmp_path: Path) -> Path:
    """A Qwen2 whose key bias is huge in one channel of head 1, as in Qwen2.5. Channel 7 turns slowly under rope."""
    folder = tiny_checkpoint(tmp_path / "hf", "qwen2")
    plant(folder, "model.layers.1.self_attn.k_proj.bias", 16 + 7, 300.0)
    return folder


def test_a_planted_key_channel_is_found_and_named(key_bias: Path, tmp_path: Path) -> None:
    layers = judged(key_bias, tmp_path / "out")
    worst = layers[1].of("k").channels[0]
    assert (worst.head, worst.channel) == (1, 7)
    assert worst.amax == pytest.approx(300, rel=0.05)
    assert worst.share > 0.2, "it is large at most tokens"
    assert layers[1].of("k").ratio < 1.5, "one channel of 32 is no rare value: only channels show it"
    assert not layers[0].of("k").channels


def test_the_advice_for_it_is_to_keep_the_cache_unquantized(key_bias: Path, tmp_path: Path) -> None:
    layers = judged(key_bias, tmp_path / "out")
    advice, reason = overall_cache_advice(layers, "fp8")
    assert advice == "keep"
    assert "keys of layer 1" in reason and "--method" not in reason
    (planted,) = [item for item in layers[1].advice if item.module == "k"]
    assert planted.action == "keep"
    assert planted.noise_then < 0.1 < planted.noise
    measured = list(read_records(tmp_path / "out"))[1].errors["k"]
    assert planted.noise_then == measured["bfloat16"] < planted.noise / 4
    assert planted.noise == pytest.approx(measured["fp8/shared"], rel=0.05), "that one is of the kept tokens"
    assert [item.action for item in layers[0].advice[:2]] == ["fp8", "fp8"]


def test_a_model_without_outliers_may_have_an_fp8_cache(tmp_path: Path) -> None:
    advice, reason = overall_cache_advice(judged(tiny_checkpoint(tmp_path / "hf", "qwen2"), tmp_path / "out"), "fp8")
    assert advice == "fp8", reason


def test_a_planted_input_channel_asks_for_smoothing_in_int8() -> None:
    random = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(200, 64, generator=random), torch.randn(32, 64, generator=random)
    rows[:, 5] *= 100
    errors = input_errors(rows, weight, rows.abs().amax(0))
    assert errors["int8/smooth"] < errors["int8/tensor"] / 2
    # The figure is that of the product itself, computed here without the module under test's help.
    factors, exact = smoothing_factors(rows.abs().amax(0), weight), rows @ weight.T
    plain = int8(rows) @ weight.T - exact
    smooth = int8(rows / factors) @ per_output(weight * factors).T - exact
    assert smooth.norm() < plain.norm() / 2
    per_token = plain.norm(dim=1) / exact.norm(dim=1)
    assert errors["int8/tensor"] == pytest.approx(float(per_token.pow(2).mean().sqrt()), rel=1e-3)


def test_a_spike_at_one_token_asks_for_a_scale_per_token() -> None:
    random = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(200, 64, generator=random), torch.randn(32, 64, generator=random)
    rows[3, 5] = 1e6
    errors = input_errors(rows, weight, rows.abs().amax(0))
    assert errors["fp8/tensor"] > 0.9, "next to the spike the others round to zero"
    assert errors["fp8/token"] < 0.05


def test_the_noise_of_an_input_is_that_of_the_scale_that_is_written(tmp_path: Path) -> None:
    """A huge token that is not among the kept ones decides the scale all the same."""
    random = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2048, 64, generator=random), torch.randn(32, 64, generator=random)
    statistics = TensorStatistics(64, 0)
    x[1001, 5] = 3e5
    statistics.update(x)
    assert np.abs(statistics.rows).max() < 10, "it was not kept"
    amax = torch.from_numpy(statistics.record().channel_amax)
    errors = input_errors(torch.from_numpy(statistics.rows), weight, amax)
    exact, others = x @ weight.T, torch.arange(len(x)) != 1001
    noise = ((fp8(x) @ weight.T - exact).norm(dim=1) / exact.norm(dim=1))[others]
    assert errors["fp8/tensor"] == pytest.approx(float(noise.pow(2).mean().sqrt()), rel=0.1)
    assert errors["fp8/tensor"] > 0.1 > errors["fp8/token"]


@pytest.fixture
def loud_input(tmp_path: Path) -> Path:
    """A Llama whose layer 1 has an attention input that is huge in one channel, and whose weights undo that."""
    folder = tiny_checkpoint(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][5] *= 2.0**17
    for name in "qkv":
        tensors[f"model.layers.1.self_attn.{name}_proj.weight"][:, 5] *= 2.0**-17
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_following_the_advice_for_a_planted_input_lowers_the_error_of_the_whole_model(
    loud_input: Path, tmp_path: Path
) -> None:
    layer = judged(loud_input, tmp_path / "out")[1]
    (advice,) = [item for item in layer.advice if item.module.endswith("q_proj")]
    assert advice.action == "smooth"
    assert advice.noise_then < 0.1 < advice.noise
    model, ids = whole_model(loud_input), torch.tensor([TEXTS[0].token_ids])
    attention = model.model.layers[1].self_attn
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([linear.weight for linear in linears]).detach()

    def error_with(change: Callable[[Tensor], Tensor]) -> float:
        """Of the logits, when the three layers read changed inputs."""
        with torch.inference_mode():
            exact = model(input_ids=ids).logits
            handles = [linear.register_forward_pre_hook(lambda _, x: (change(x[0]),)) for linear in linears]
            changed = model(input_ids=ids).logits
        for handle in handles:
            handle.remove()
        return float((changed - exact).norm() / exact.norm())

    def smoothed(x: Tensor) -> Tensor:
        factors = smoothing_factors(x[0].abs().amax(0), weight)
        return fp8(x / factors) * factors

    assert error_with(smoothed) < error_with(fp8) / 4


def test_an_input_that_nothing_helps_is_kept_and_the_noise_then_is_the_measured_one(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    (tmp_path / "out").mkdir()
    collect(folder, TEXTS, tmp_path / "out", PassOptions("float32"), measure_layer)
    record = next(iter(read_records(tmp_path / "out")))
    name = next(iter(record.inputs))
    bad = dict.fromkeys(record.errors[name], 0.5) | {"bfloat16": 0.003}
    layer = judge_layer(replace(record, errors={**record.errors, name: bad}), "fp8", 1.0)
    (advice,) = [item for item in layer.advice if item.module == name]
    assert (advice.action, advice.noise, advice.noise_then) == ("keep", 0.5, 0.003)


def test_following_the_advice_for_a_planted_key_lowers_the_error_of_the_whole_model(
    key_bias: Path, tmp_path: Path
) -> None:
    records = run_pass(key_bias, tmp_path / "pass", samples=TEXTS)
    variants = cache_variants(read_model_spec(key_bias), records, torch.float32, ScaleMethod())
    kept = CacheVariant("bfloat16", 0, lambda _, k, v: (k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype)))
    found = measure_prices(key_bias, TEXTS[:2], (*variants, kept), PassOptions("float32"))
    kl = {price.name: price.kl for price in found}
    assert kl["bfloat16"] < kl["fp8"] / 8


def test_effective_bits_count_what_outliers_leave(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    before = judge_layer_bits(folder, tmp_path / "a")
    plant(folder, "model.layers.0.self_attn.v_proj.weight", 3, 8.0)
    assert judge_layer_bits(folder, tmp_path / "b") < before - 2


def judge_layer_bits(folder: Path, out: Path) -> float:
    return judged(folder, out)[0].of("v").bulk_bits


def test_numbers_that_are_all_equal_have_the_ratio_one_and_all_bits() -> None:
    statistics = TensorStatistics(4, 0)
    statistics.update(torch.full((8, 4), 1.0))
    described = describe("x", statistics.record())
    assert described.ratio == 1.0
    assert described.bulk_bits == pytest.approx(math.log2(254))


def test_an_outlier_among_dead_channels_is_named() -> None:
    values = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    values[:, :5] = 0
    values[:, 6] *= 1000
    statistics = TensorStatistics(8, 2)
    statistics.update(values)
    (channel,) = describe("v", statistics.record()).channels
    assert (channel.head, channel.channel) == (1, 2)


def test_a_channel_that_is_always_large_is_told_from_one_spike() -> None:
    values = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    values[:, 3] += 100
    values[7, 40] = 500.0
    for by_channel in (True, False):
        statistics = TensorStatistics(64, 0, by_channel=by_channel)
        statistics.update(values)
        spike, always = describe("x", statistics.record()).channels
        assert (spike.channel, always.channel) == (40, 3)
        if by_channel:
            assert spike.high is not None and spike.high == pytest.approx(3.3, rel=0.15)
            assert always.high is not None and always.high == pytest.approx(103, rel=0.05)
        else:
            assert spike.high is always.high is None


def test_a_spike_among_zeros_is_no_tensor_without_outliers() -> None:
    values = torch.zeros(4000, 8)
    values[:20, 0] = 0.01
    values[7, 3] = 5.0
    statistics = TensorStatistics(8, 0)
    statistics.update(values)
    assert describe("x", statistics.record()).ratio == pytest.approx(1.0), "of 21 numbers, one is 5 %"
    values[:2000, 0] = 0.01
    assert statistics.update(values)
    assert describe("x", statistics.record()).ratio == pytest.approx(500, rel=0.01)


def test_the_heat_map_shows_every_layer_and_tensor(tmp_path: Path) -> None:
    layers = judged(tiny_checkpoint(tmp_path / "hf", "mixtral"), tmp_path / "out")
    kinds = tensor_kinds(layers)
    assert "mlp.experts.*.down_proj" in kinds
    assert ratio_grid(layers, kinds).shape == noise_grid(layers, kinds).shape == (3, len(kinds))
    assert np.all(ratio_grid(layers, kinds) >= 1)
    draw_heat_map(layers, "fp8", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_without_outliers_is_dark_in_the_heat_map(tmp_path: Path) -> None:
    layers = judged(tiny_checkpoint(tmp_path / "hf"), tmp_path / "out")
    ratios, noises = (axes.images[0] for axes in heat_map_figure(layers, "fp8").axes[:2])
    assert (noises.norm.vmin, noises.norm.vmax) == (0, 10), "3 % noise is no bright yellow"
    assert (ratios.norm.vmin, ratios.norm.vmax) == (0, 4)


@pytest.mark.parametrize("num_layers", [1, 2, 30])
def test_the_heat_map_counts_in_whole_layers(num_layers: int, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    layers = judged(folder, tmp_path / "out") * num_layers
    figure = heat_map_figure(layers, "int8")
    figure.canvas.draw()
    low, high = -0.5, num_layers - 0.5
    ticks = [tick for tick in figure.axes[0].get_yticks() if low <= tick <= high]
    assert ticks and all(tick == int(tick) for tick in ticks)
    assert "k, v: INT8" in figure.axes[1].get_title()


def test_records_without_errors_are_kept_apart(tmp_path: Path) -> None:
    records = run_pass(tiny_checkpoint(tmp_path / "hf"), tmp_path / "pass")
    assert all(not record.errors for record in records)
    with pytest.raises(KeyError):
        judge_layer(records[0], "fp8", 1.0)


def fp8(x: Tensor) -> Tensor:
    scale = x.abs().max() / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def int8(x: Tensor) -> Tensor:
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def per_output(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale
