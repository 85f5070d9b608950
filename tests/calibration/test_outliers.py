"""Planted outliers: found, named, and the advice for them lowers the error that is measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import random_samples, run_pass
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from torch import Tensor
from trtkit.calibration.collect import PassOptions, collect
from trtkit.calibration.errors import input_errors, measure_layer, smoothing_factors
from trtkit.calibration.heat_map import draw_heat_map, noise_grid, ratio_grid, tensor_kinds
from trtkit.calibration.outliers import LayerOutliers, judge_layer, overall_cache_advice
from trtkit.calibration.pass_files import read_records

TEXTS = random_samples({f"text-{number}": 64 for number in range(8)})


def judged(folder: Path, out: Path) -> list[LayerOutliers]:
    out.mkdir()
    collect(folder, TEXTS, out, PassOptions("float32"), measure_layer)
    return [judge_layer(record) for record in read_records(out)]


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
    assert worst.persists
    assert layers[1].of("k").ratio < 1.5, "one channel of 32 is no rare value: only channels show it"
    assert not layers[0].of("k").channels


def test_the_advice_for_it_is_to_keep_the_cache_unquantized(key_bias: Path, tmp_path: Path) -> None:
    layers = judged(key_bias, tmp_path / "out")
    advice, reason = overall_cache_advice(layers)
    assert advice == "keep"
    assert "keys of layer 1" in reason
    (planted,) = [item for item in layers[1].advice if item.module == "k"]
    assert planted.action == "keep"
    assert planted.noise_then < 0.1 < planted.noise
    assert [item.action for item in layers[0].advice[:2]] == ["fp8", "fp8"]


def test_a_model_without_outliers_may_have_an_fp8_cache(tmp_path: Path) -> None:
    advice, reason = overall_cache_advice(judged(tiny_checkpoint(tmp_path / "hf", "qwen2"), tmp_path / "out"))
    assert advice == "fp8", reason


def test_a_planted_input_channel_asks_for_smoothing_in_int8() -> None:
    random = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(200, 64, generator=random), torch.randn(32, 64, generator=random)
    rows[:, 5] *= 100
    errors = input_errors(rows, weight)
    assert errors["int8/smooth"] < errors["int8/tensor"] / 2
    # The figure is that of the product itself, computed here without the module under test's help.
    factors, exact = smoothing_factors(rows, weight), rows @ weight.T
    plain = int8(rows) @ weight.T - exact
    smooth = int8(rows / factors) @ per_output(weight * factors).T - exact
    assert smooth.norm() < plain.norm() / 2
    per_token = plain.norm(dim=1) / exact.norm(dim=1)
    assert errors["int8/tensor"] == pytest.approx(float(per_token.pow(2).mean().sqrt()), rel=1e-3)


def test_a_spike_at_one_token_asks_for_a_scale_per_token() -> None:
    random = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(200, 64, generator=random), torch.randn(32, 64, generator=random)
    rows[3, 5] = 1e6
    errors = input_errors(rows, weight)
    assert errors["fp8/tensor"] > 0.9, "next to the spike the others round to zero"
    assert errors["fp8/token"] < 0.05


def test_effective_bits_count_what_outliers_leave(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    before = judge_layer_bits(folder, tmp_path / "a")
    plant(folder, "model.layers.0.self_attn.v_proj.weight", 3, 8.0)
    assert judge_layer_bits(folder, tmp_path / "b") < before - 2


def judge_layer_bits(folder: Path, out: Path) -> float:
    return judged(folder, out)[0].of("v").bulk_bits


def test_the_heat_map_shows_every_layer_and_tensor(tmp_path: Path) -> None:
    layers = judged(tiny_checkpoint(tmp_path / "hf", "mixtral"), tmp_path / "out")
    kinds = tensor_kinds(layers)
    assert "mlp.experts.*.down_proj" in kinds
    assert ratio_grid(layers, kinds).shape == noise_grid(layers, kinds).shape == (3, len(kinds))
    assert np.all(ratio_grid(layers, kinds) >= 1)
    draw_heat_map(layers, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_records_without_errors_are_kept_apart(tmp_path: Path) -> None:
    records = run_pass(tiny_checkpoint(tmp_path / "hf"), tmp_path / "pass")
    assert all(not record.errors for record in records)
    with pytest.raises(KeyError):
        judge_layer(records[0])


def int8(x: Tensor) -> Tensor:
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def per_output(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale
