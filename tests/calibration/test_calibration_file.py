"""calibration.json: written for the converter, read by it, tied to one checkpoint."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrated import SAMPLES
from converted import read_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from safetensors.numpy import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.calibration.calibration_file import FILE_NAME, ScaleOptions
from trtkit.calibration.jobs import Choices, plan_calibrations
from trtkit.calibration.picture import write_picture
from trtkit.calibration.records import LayerRecord, is_whole_record, read_layer_record, write_layer_record
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.texts import CalibrationText
from trtkit.config.load import load_config
from trtkit.conversion.calibration import read_calibration, refuse_foreign
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import InputError

TEXTS = [CalibrationText(sample.name, token_ids=sample.token_ids * 2) for sample in SAMPLES]


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2_moe", "phi3", "gpt2"])
def test_the_converter_takes_its_scales_from_the_file(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    report = calibrate(folder, tmp_path / "calibration", CalibrationOptions("float32"), TEXTS)
    path = report.out / "calibration.json"
    options = ConversionOptions(dtype="float16", quantization="fp8", kv_cache_dtype="fp8", calibration=path)
    convert_to(folder, tmp_path / "trt", options)
    tensors = read_ranks(tmp_path / "trt")[0]
    for layer in report.layers:
        name = f"transformer.layers.{layer.layer}.attention.kv_cache_scaling_factor"
        scale = np.frombuffer(tensors[name][2], np.float32)[0]
        largest = max(layer.of("k").amax, layer.of("v").amax)
        assert scale == 2.0 ** math.ceil(math.log2(largest / 448)), "a power of two, of the cache alone"
        qkv = f"transformer.layers.{layer.layer}.attention.qkv.activation_scaling_factor"
        heard = {"gpt2": "attn.c_attn", "phi3": "self_attn.qkv_proj"}.get(family, "self_attn.q_proj")
        scale = np.frombuffer(tensors[qkv][2], np.float32)[0]
        assert scale == np.float32(layer.of(heard).amax) / np.float32(448)


def test_scales_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    mine, other = tiny_checkpoint(tmp_path / "mine"), tiny_checkpoint(tmp_path / "other", rms_norm_eps=1e-6)
    path = calibrate(mine, tmp_path / "out", CalibrationOptions("float32"), TEXTS).out / "calibration.json"
    refuse_foreign(path, mine)
    with pytest.raises(InputError, match=r"CALIB-CHECKPOINT.*scales of another checkpoint"):
        refuse_foreign(path, other)


def test_the_converter_takes_no_scales_of_another_checkpoint(tmp_path: Path) -> None:
    mine, other = tiny_checkpoint(tmp_path / "mine"), tiny_checkpoint(tmp_path / "other", rms_norm_eps=1e-6)
    path = calibrate(mine, tmp_path / "out", CalibrationOptions("float32"), TEXTS).out / "calibration.json"
    options = ConversionOptions(dtype="float16", quantization="fp8", calibration=path)
    convert_to(mine, tmp_path / "trt", options)
    with pytest.raises(InputError, match="CALIB-CHECKPOINT"):
        convert_to(other, tmp_path / "foreign", options)
    assert not (tmp_path / "foreign").exists()


def test_one_changed_weight_is_another_checkpoint(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    path = calibrate(folder, tmp_path / "out", CalibrationOptions("float32"), TEXTS).out / "calibration.json"
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="CALIB-CHECKPOINT"):
        refuse_foreign(path, folder)


def test_an_unused_expert_takes_its_siblings_limit(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", "mixtral", num_local_experts=32, num_experts_per_tok=1)
    one_text = [CalibrationText("one", token_ids=(7,) * 130)]
    report = calibrate(folder, tmp_path / "out", CalibrationOptions("float32"), one_text)
    (finding,) = [finding for finding in report.findings if finding.code == "CALIB-EXPERTS"]
    assert finding.severity == "warning" and ".experts." in finding.cause
    inputs = read_calibration(report.out / "calibration.json").inputs
    experts = {name: v for name, v in inputs.items() if name.startswith("model.layers.0.") and name.endswith(".w2")}
    assert len(experts) == 32
    assert min(experts.values()) > 0


def test_values_too_small_for_a_scale_get_a_limit_that_the_converter_takes(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"] *= np.float32(1e-38)
    save_file(weights, folder / "model.safetensors")
    path = calibrate(folder, tmp_path / "out", CalibrationOptions("float32"), TEXTS).out / "calibration.json"
    assert read_calibration(path).kv_cache[1][1] == 448.0
    options = ConversionOptions(dtype="float32", quantization="fp8", kv_cache_dtype="fp8", calibration=path)
    convert_to(folder, tmp_path / "trt", options)


def test_another_method_uses_the_measurements_again(tmp_path: Path) -> None:
    folder, out = tiny_checkpoint(tmp_path / "hf"), tmp_path / "out"
    calibrate(folder, out, CalibrationOptions("float32"), TEXTS)
    record = out / "measured" / "layers" / "0000.npz"
    (out / "price.png").write_bytes(b"of an earlier run with --price")
    before, by_default = record.stat().st_mtime_ns, read_calibration(out / "calibration.json")
    options = ScaleOptions(ScaleMethod("percentile", 90.0))
    calibrate(folder, out, CalibrationOptions("float32", scales=options), TEXTS)
    assert record.stat().st_mtime_ns == before
    assert not (out / "price.png").exists(), "it shows other scales"
    by_percentile = read_calibration(out / "calibration.json")
    assert all(by_percentile.kv_cache[layer] < by_default.kv_cache[layer] for layer in by_default.kv_cache)
    assert json.loads((out / "calibration.json").read_text())["method"] == {"name": "percentile", "percentile": 90.0}


@pytest.mark.parametrize(("method", "kind"), [("amax", "fp8"), ("power-of-two", "fp8"), ("amax", "int8")])
def test_the_report_says_the_scales_that_a_conversion_writes(method: Any, kind: Any, tmp_path: Path) -> None:
    folder, out = tiny_checkpoint(tmp_path / "hf"), tmp_path / "out"
    scales = ScaleOptions(ScaleMethod(method), kind)
    report = calibrate(folder, out, CalibrationOptions("float32", scales=scales), TEXTS)
    options = ConversionOptions(dtype="float32", kv_cache_dtype=kind, calibration=out / "calibration.json")
    convert_to(folder, tmp_path / "trt", options)
    stored = read_ranks(tmp_path / "trt")[0]
    for layer, scale in report.kv_scales.items():
        written = stored[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"]
        assert np.frombuffer(written[2], np.float32)[0] == np.float32(scale)
        assert math.log2(scale).is_integer() == (method == "power-of-two")


@pytest.mark.parametrize("method", ["power-of-two", "mse"])
def test_limits_that_were_chosen_for_one_cache_are_refused_for_another(method: Any, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    scales = ScaleOptions(ScaleMethod(method), "fp8")
    path = calibrate(folder, tmp_path / "out", CalibrationOptions("float32", scales=scales), TEXTS).out / FILE_NAME
    with pytest.raises(InputError, match=r"CONV-CALIBRATION.*for an fp8 KV cache, and this one is to be int8"):
        convert_to(folder, tmp_path / "a", ConversionOptions(kv_cache_dtype="int8", calibration=path))
    convert_to(folder, tmp_path / "b", ConversionOptions(kv_cache_dtype="fp8", calibration=path))
    maxima = ScaleOptions(ScaleMethod("amax"), "fp8")
    calibrate(folder, tmp_path / "out", CalibrationOptions("float32", scales=maxima), TEXTS)
    convert_to(folder, tmp_path / "c", ConversionOptions(kv_cache_dtype="int8", calibration=path))


def test_a_config_decides_samples_texts_and_formats(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    path = tmp_path / "c.yaml"
    path.write_text(
        f"name: x\ntarget: {{checkpoint: {folder}, dtype: float16}}\nkv_cache: {{dtype: int8}}\n"
        "calibration: {samples: 3, max_len: 9, seed: 5, prompts: mine.jsonl}\n"
    )
    job = plan_calibrations(load_config(path, ()), tmp_path, Choices(method="mse"))["target"]
    assert job.out == Path("build/x/calibration/target")
    assert (job.options.samples.samples, job.options.samples.max_len, job.options.samples.seed) == (3, 9, 5)
    assert job.texts == Path("mine.jsonl")
    assert job.options.dtype == "float16"
    assert job.options.scales == ScaleOptions(ScaleMethod("mse"), "int8")
    with pytest.raises(InputError, match="the config has no draft"):
        plan_calibrations(load_config(path, ()), tmp_path, Choices(only="draft"))
    with pytest.raises(InputError, match="CALIB-OPTION"):
        plan_calibrations(load_config(path, ()), tmp_path, Choices(percentile=0))


def test_a_damaged_measurement_is_made_again(tmp_path: Path) -> None:
    folder, out = tiny_checkpoint(tmp_path / "hf"), tmp_path / "out"
    calibrate(folder, out, CalibrationOptions("float32"), TEXTS)
    first = (out / "calibration.json").read_bytes()
    record = out / "measured" / "layers" / "0001.npz"
    whole = record.read_bytes()
    random = np.random.RandomState(3)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    for damaged in (random.bytes(len(whole)), b"PK\x03\x04" + whole[4:][::-1], bytes(flipped), bytes(len(whole))):
        record.write_bytes(damaged)
        calibrate(folder, out, CalibrationOptions("float32"), TEXTS)
        assert (out / "calibration.json").read_bytes() == first


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), length=st.floats(0.9, 1))
def test_no_damage_to_a_record_is_a_traceback(place: float, bit: int, length: float, tmp_path: Path) -> None:
    whole = tmp_path / "whole.npz"
    if not whole.exists():
        write_layer_record(LayerRecord(3, {}, {"a": "b"}, {"k": {"noise": 0.5}}), whole)
        assert is_whole_record(whole)
    data = bytearray(whole.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path = tmp_path / "damaged.npz"
    path.write_bytes(data[: int(length * len(data))])
    if is_whole_record(path):
        assert read_layer_record(path) == read_layer_record(whole)


def test_texts_longer_than_the_positions_of_the_model_are_cut(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", "gpt2", max_position_embeddings=64)
    report = calibrate(
        folder, tmp_path / "out", CalibrationOptions("float32"), [CalibrationText("t", None, (), (5,) * 200)]
    )
    assert (report.measured.num_tokens, report.measured.num_samples) == (200, 4)


def test_a_picture_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trtkit.artifacts.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_picture(Figure(), tmp_path / "p.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["int8", "fp8", "auto", ""])
def test_a_dtype_that_nothing_is_computed_in_is_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"CALIB-OPTION.*is no dtype to compute in"):
        calibrate(tiny_checkpoint(tmp_path / "hf"), tmp_path / "out", CalibrationOptions(dtype), TEXTS)
    assert not (tmp_path / "out").exists()
