"""The noise of a cache: of the scale and the format that are written, over everything that was measured."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import random_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.calibration.cache_noise import cache_noise
from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.errors import cache_errors
from trtkit.calibration.heat_map import noise_grid, tensor_kinds
from trtkit.calibration.number_formats import LARGEST, Format, fake_quantize
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.statistics import TensorStatistics
from trtkit.calibration.texts import CalibrationText
from trtkit.cli.calibrate import render

TEXTS = [CalibrationText(s.name, token_ids=s.token_ids) for s in random_samples({f"t{n}": 40 for n in range(9)})]


def expected_noise(x: torch.Tensor, scale: float, kind: Format) -> float:
    """[T, C] in plain numpy."""
    values = x.double().numpy()
    noise = np.square(fake_quantize(values, scale, kind) - values).mean()
    return float(np.sqrt(noise / np.square(values - values.mean(0)).mean()))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 100),
    share=st.sampled_from([2.0, 1.0, 0.3, 0.01]),
    bias=st.sampled_from([0.0, 30.0]),
    kind=st.sampled_from(["fp8", "int8"]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float16]),
)
def test_it_is_that_of_every_number(seed: int, share: float, bias: float, kind: Any, dtype: torch.dtype) -> None:
    """share: of the largest magnitude that becomes the largest code."""
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(seed))
    x[:, 3] += bias
    x = x.to(dtype)
    statistics = TensorStatistics(8, 2)
    assert statistics.update(x)
    scale = share * float(x.abs().max()) / LARGEST[kind]
    # Bfloat16 is counted number by number, wider numbers by bins.
    rel = 1e-9 if dtype == torch.bfloat16 else 0.05
    assert cache_noise(statistics.record(), scale, kind) == pytest.approx(expected_noise(x, scale, kind), rel=rel)


def test_the_largest_number_is_no_larger_than_it_was() -> None:
    """The middle of its bin is, and would be cut by a scale that keeps all that was measured."""
    x = torch.tensor([[1.0], [-1.0]]).repeat(100, 4)
    statistics = TensorStatistics(4, 2)
    statistics.update(x)
    assert cache_noise(statistics.record(), 1.0 / LARGEST["int8"], "int8") == 0


@pytest.mark.parametrize("value", [0.0, 0.7, 3.3, -1e-30, 1e37])
def test_where_the_tokens_do_not_differ_nothing_is_lost(value: float) -> None:
    x = torch.full((1000, 4), value)
    statistics = TensorStatistics(4, 2)
    statistics.update(x)
    record = statistics.record()
    assert np.array_equal(record.channel_mean.astype(np.float32), x[0].numpy())
    assert cache_noise(record, 1.0, "int8") == 0
    assert set(cache_errors(statistics, record.amax).values()) == {0.0}


def test_the_report_has_the_noise_of_the_scales_that_it_writes(tmp_path: Path) -> None:
    """Half of all numbers cut: the advice is not that all is well, and says whose fault it is."""
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16")
    options = CalibrationOptions("bfloat16", scales=ScaleOptions(ScaleMethod("percentile", 50.0)))
    cut = calibrate(folder, tmp_path / "out", options, TEXTS)
    assert all(advice.noise > 0.5 for layer in cut.layers for advice in layer.advice[:2])
    assert cut.cache_advice == "keep"
    assert "with --method amax it is at most 2." in cut.cache_reason
    assert (cut.measured.method, cut.measured.percentile) == ("percentile", 50.0)
    whole = calibrate(folder, tmp_path / "out", replace(options, scales=ScaleOptions()), TEXTS)
    assert whole.cache_advice == "fp8" and whole.measured.percentile is None


def test_the_advice_is_about_the_cache_that_is_configured(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    found = {}
    for kind in ("fp8", "int8", "int4"):
        options = CalibrationOptions("float32", scales=ScaleOptions(ScaleMethod("amax"), kind))  # type: ignore[arg-type]
        report = calibrate(folder, tmp_path / "out", options, TEXTS)
        document = report.as_dict()
        assert document["kv_cache"]["dtype"] == document["kv_cache"]["advice"] == kind
        assert f"an {kind.upper()} cache is fine" in report.cache_reason
        found[kind] = [advice.noise for advice in report.layers[0].advice[:2]]
        assert [layer["kv_scale"] is None for layer in document["layers"]] == [kind == "int4"] * 3
    errors = report.layers[0].errors
    assert found["int4"] == [errors[name]["int4/cache"] for name in "kv"]
    assert max(found["int8"]) < 0.01 < min(found["fp8"]) < 0.04 < min(found["int4"])
    # A sixteenth of a range of about four standard deviations, uniform in the step.
    assert found["int4"][1] == pytest.approx(4 / 15 / math.sqrt(12), rel=0.3)


def test_heads_that_int4_groups_do_not_fill_have_no_such_error() -> None:
    statistics = TensorStatistics(96, 2)
    statistics.update(torch.randn(64, 96, generator=torch.Generator().manual_seed(0)))
    assert "int4/cache" not in cache_errors(statistics, statistics.record().amax)


def test_what_comes_back_as_nan_is_no_fine_cache(tmp_path: Path) -> None:
    """INT4 keeps its steps in float16, which these values overflow; FP8 does not care."""
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] *= 1e30
    tensors["model.layers.1.self_attn.o_proj.weight"] *= 1e-30
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    options = CalibrationOptions("bfloat16", scales=ScaleOptions(ScaleMethod(), "int4"))
    report = calibrate(folder, tmp_path / "out", options, TEXTS)
    assert report.cache_advice == "keep"
    assert "the values of layer 1 get infinite noise in INT4 (it alone exceeds 10%)" in report.cache_reason
    written = (tmp_path / "out" / "report.json").read_text()
    document = json.loads(written, parse_constant=pytest.fail)
    assert document["layers"][1]["advice"][1]["noise"] is None
    shown = io.StringIO()
    Console(file=shown, width=120).print(render("target", report))
    assert "infinite" in shown.getvalue() and "nan%" not in shown.getvalue()
    kinds = tensor_kinds(report.layers)
    assert noise_grid(report.layers, kinds).max() == 1
