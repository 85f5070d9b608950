"""nvidia-modelopt: what it measures on the same data equals what the pass measures; what it writes passes the audit."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import SAMPLES, random_samples, run_pass
from converted import read_config, read_ranks
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, tiny_checkpoint
from trtkit.calibration.calibration_file import ScaleOptions
from trtkit.calibration.modelopt_checkpoint import quantize_with_modelopt
from trtkit.calibration.run import CalibrationOptions, calibrate
from trtkit.calibration.samples import SampleOptions, make_samples
from trtkit.calibration.scales import ScaleMethod
from trtkit.calibration.texts import CalibrationText, shipped_texts
from trtkit.checking.subjects.trtllm_checkpoint import read_trtllm_checkpoint
from trtkit.conversion.convert import convert_to
from trtkit.conversion.modelopt import quantized_model
from trtkit.conversion.modelopt_limits import ModeloptOptions
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError, MissingToolError
from trtkit.progress import Progress, silent

LONGER = random_samples({"first": 70, "second": 60})
WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256}


def modelopt_amax(folder: Path, samples: Any, dtype: str) -> dict[str, float]:
    """Quantizer name -> amax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = [sample.token_ids for sample in samples]
        model = quantized_model(folder, ids, ModeloptOptions("fp8", fp8_kv_cache=True, dtype=dtype), silent)
    quantizers = {name: module for name, module in model.named_modules() if name.endswith("quantizer")}
    amaxes = {name: getattr(module, "amax", None) for name, module in quantizers.items()}
    return {name: float(amax.max()) for name, amax in amaxes.items() if amax is not None}


def assert_same(records: Any, theirs: dict[str, float], attention: str = "model.layers.{}.self_attn") -> None:
    for record in records:
        stem = attention.format(record.layer)
        assert record.keys.amax == pytest.approx(theirs[f"{stem}.k_bmm_quantizer"], rel=1e-6)
        assert record.values.amax == pytest.approx(theirs[f"{stem}.v_bmm_quantizer"], rel=1e-6)
        compared = 0
        for module, heard in record.modules.items():
            if f"{module}.input_quantizer" in theirs:
                compared += 1
                ours = record.tensors[heard].amax
                assert ours == pytest.approx(theirs[f"{module}.input_quantizer"], rel=1e-6), module
        assert compared >= (2 if "experts" in str(record.modules) else 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_maxima_equal_those_of_modelopt(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family)
    theirs = modelopt_amax(folder, SAMPLES, "float32")
    attention = "transformer.h.{}.attn" if family == "gpt2" else "model.layers.{}.self_attn"
    assert_same(run_pass(folder, tmp_path / "pass"), theirs, attention)


@pytest.mark.demo
def test_maxima_of_the_demo_target_equal_those_of_modelopt(demo_pair: dict[str, Path], tmp_path: Path) -> None:
    samples = make_samples(shipped_texts(), demo_pair["target"], 49152, SampleOptions(samples=4, max_len=128))
    theirs = modelopt_amax(demo_pair["target"], samples, "bfloat16")
    assert_same(run_pass(demo_pair["target"], tmp_path / "pass", samples=samples, dtype="bfloat16"), theirs)


@pytest.mark.parametrize(
    ("quantization", "algorithm"),
    [("fp8", "FP8"), ("int4_awq", "W4A16_AWQ"), ("w4a8_awq", "W4A8_AWQ"), ("nvfp4", "NVFP4"),
     ("int8_smoothquant", "W8A8_SQ_PER_CHANNEL")],
)  # fmt: skip
def test_every_algorithm_becomes_a_tensorrt_llm_checkpoint(quantization: Any, algorithm: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16", **WIDE)
    events: list[Progress] = []
    assert quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", ModeloptOptions(quantization), events.append)
    assert read_config(tmp_path / "out")["quantization"]["quant_algo"] == algorithm
    assert (tmp_path / "out" / "rank0.safetensors").is_file()
    assert Progress("modelopt", len(SAMPLES), len(SAMPLES), "samples") in events
    assert not quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", ModeloptOptions(quantization))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma"])
def test_its_scales_pass_the_audit_and_are_ours(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family, "bfloat16", **WIDE)
    records = run_pass(folder, tmp_path / "pass", dtype="bfloat16")
    options = ModeloptOptions("fp8", fp8_kv_cache=True)
    quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", options)
    audit = read_trtllm_checkpoint(tmp_path / "out").scale_audit
    assert audit.verdict == "calibrated"
    tensors = read_ranks(tmp_path / "out")[0]
    for record in records:
        stem = f"transformer.layers.{record.layer}.attention."
        theirs = np.frombuffer(tensors[f"{stem}kv_cache_scaling_factor"][2], np.float32)[0]
        assert theirs == pytest.approx(max(record.keys.amax, record.values.amax) / 448, rel=1e-6)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_a_conversion_with_our_file_holds_the_scales_that_modelopt_exports(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", family, "bfloat16", **WIDE)
    texts = [CalibrationText(sample.name, token_ids=sample.token_ids) for sample in LONGER]
    by_amax = CalibrationOptions("bfloat16", scales=ScaleOptions(ScaleMethod("amax")))
    calibrate(folder, tmp_path / "calibration", by_amax, texts)
    path = tmp_path / "calibration" / "calibration.json"
    ours = ConversionOptions(dtype="bfloat16", quantization="fp8", kv_cache_dtype="fp8", calibration=path)
    convert_to(folder, tmp_path / "ours", ours)
    # In the order of the calibration's shuffle nothing but the maxima could differ, and they do not depend on order.
    quantize_with_modelopt(folder, LONGER, tmp_path / "theirs", ModeloptOptions("fp8", fp8_kv_cache=True))
    mine, theirs = read_ranks(tmp_path / "ours")[0], read_ranks(tmp_path / "theirs")[0]
    names = [name for name in mine if name.endswith("scaling_factor") and name in theirs]
    assert len(names) == 3 * (5 * 2 + 3), (
        "per layer: weight and input of qkv, dense, fc, gate, proj; keys, values, both"
    )
    for name in names:
        # modelopt gives gate and up, which a fused MLP multiplies at once, the larger of their weight scales.
        shared = {
            name.replace("mlp.fc.weights", "mlp.gate.weights"),
            name.replace("mlp.gate.weights", "mlp.fc.weights"),
        }
        expected = max(scale_in(mine, other) for other in shared)
        assert scale_in(theirs, name) == pytest.approx(expected, rel=1e-6), name


def scale_in(tensors: dict[str, Any], name: str) -> float:
    return float(np.frombuffer(tensors[name][2], np.float32)[0])


def test_scales_reach_every_rank_and_stage(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16", num_hidden_layers=4, **WIDE)
    records = run_pass(folder, tmp_path / "pass", dtype="bfloat16")
    options = ModeloptOptions("fp8", fp8_kv_cache=True, tensor_parallel=2, pipeline_parallel=2)
    quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", options)
    ours = {r.layer: max(r.keys.amax, r.values.amax) / 448 for r in records}
    theirs = read_trtllm_checkpoint(tmp_path / "out").kv_scales
    assert {layer: max(scales) for layer, scales in theirs.items()} == pytest.approx(ours, rel=1e-6)


def test_two_ranks_are_written(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16", **WIDE)
    quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", ModeloptOptions("fp8", tensor_parallel=2))
    assert len(read_ranks(tmp_path / "out")) == 2


def test_a_hugging_face_checkpoint_names_its_algorithms(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf", dtype="bfloat16", **WIDE)
    options = ModeloptOptions("fp8", fp8_kv_cache=True, format="hf")
    quantize_with_modelopt(folder, SAMPLES, tmp_path / "out", options)
    quantization = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert (quantization["quant_algo"], quantization["kv_cache_quant_algo"]) == ("FP8", "FP8")
    scales = load_file(tmp_path / "out" / "model.safetensors")
    for record in run_pass(folder, tmp_path / "pass", dtype="bfloat16"):
        stem = f"model.layers.{record.layer}.self_attn."
        assert float(scales[f"{stem}k_proj.k_scale"]) == pytest.approx(record.keys.amax / 448, rel=1e-6)
        assert float(scales[f"{stem}v_proj.v_scale"]) == pytest.approx(record.values.amax / 448, rel=1e-6)


def test_what_it_cannot_do_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    narrow, phi3 = tiny_checkpoint(tmp_path / "a"), tiny_checkpoint(tmp_path / "b", "phi3")
    with pytest.raises(CheckpointError, match="between 128 values, and the hidden size per rank is 64"):
        quantize_with_modelopt(narrow, SAMPLES, tmp_path / "out", ModeloptOptions("int4_awq"))
    with pytest.raises(CheckpointError, match="has no phi3"):
        quantize_with_modelopt(phi3, SAMPLES, tmp_path / "out", ModeloptOptions("fp8"))
    with pytest.raises(CheckpointError, match="3 layers over 2 stages"):
        quantize_with_modelopt(narrow, SAMPLES, tmp_path / "out", ModeloptOptions("fp8", pipeline_parallel=2))


def test_a_missing_modelopt_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match=r"trtkit\[quantize\]"):
        quantize_with_modelopt(tiny_checkpoint(tmp_path / "hf"), SAMPLES, tmp_path / "out", ModeloptOptions("fp8"))


def test_weights_in_fp8_are_refused_as_it_would_take_them_without_their_scales(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name], tensors[f"{name}_scale"] = tensors[name].to(torch.float8_e4m3fn), torch.ones(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    options = CalibrationOptions("float32", modelopt=ModeloptOptions("fp8"))
    with pytest.raises(CheckpointError, match=r"CONV-MODELOPT.*stored in FP8") as caught:
        calibrate(folder, tmp_path / "out", options)
    assert "leave out --modelopt" in caught.value.fix and not (tmp_path / "out").exists()
