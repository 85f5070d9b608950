"""FP8 in Hugging Face's format: unified scale names, the metadata that the PyTorch backend reads, honest values."""

import json
from dataclasses import replace
from pathlib import Path

import conversion_matrix as matrix
import numpy as np
import pytest
import tiny
from converted import read_tensors
from reassembly import hf_tensors, to_float
from trtkit.checkpoints.quantized import read_quantized
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError, InputError


def calibrated(folder: Path, family: str = "llama") -> Path:
    """A tiny checkpoint with a tokenizer and a calibration file in it."""
    tiny.tiny_checkpoint(folder, family, "bfloat16", tokenizer=True)
    names = read_tensors(folder / "model.safetensors")
    document = {
        "schema": "trtkit.calibration/1",
        "inputs": {name.removesuffix(".weight"): 4.48 for name, tensor in names.items() if len(tensor[1]) == 2},
        "kv_cache": {str(layer): {"k": 44.8, "v": 4.48} for layer in range(3)},
    }
    (folder / "calibration.json").write_text(json.dumps(document))
    return folder


def options(source: Path) -> ConversionOptions:
    return ConversionOptions(
        quantization="fp8", kv_cache_dtype="fp8", output_format="hf", calibration=source / "calibration.json"
    )


@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if matrix.hf_cell(family, "fp8") == "yes"])
def test_every_linear_layer_is_fp8_with_its_scales_and_the_rest_is_unchanged(family: str, tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source", family)
    convert_to(source, tmp_path / "out", options(source))
    before = read_tensors(source / "model.safetensors")
    after = read_tensors(tmp_path / "out" / "model.safetensors")
    for name, tensor in before.items():
        is_linear = len(tensor[1]) == 2 and ("proj" in name or ".experts." in name)
        if not is_linear:
            assert after[name] == tensor, name
            continue
        scale = to_float(after[f"{name}_scale"])
        values = to_float(tensor)
        assert after[name][0] == "float8_e4m3fn" and after[f"{name}_scale"][1] == ()
        assert scale == np.float32(np.abs(values).max()) / np.float32(448)
        error = np.abs(to_float(after[name]) * scale - values)
        assert (error <= np.maximum(np.abs(values) * 2**-4, scale * 2**-10) * 1.001).all(), name
        assert to_float(after[name.replace("weight", "input_scale")]) == np.float32(4.48) / np.float32(448)
    kv = {name for name in after if name.endswith(("k_scale", "v_scale"))}
    assert kv == {
        f"{n.removesuffix('weight')}{n[-13]}_scale" for n in before if n.endswith(("k_proj.weight", "v_proj.weight"))
    }


def test_metadata_and_tokenizer_come_along(tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    convert_to(source, tmp_path / "out", options(source))
    written = read_quantized(tmp_path / "out")
    assert written is not None
    assert (written.algorithm, written.kv_algorithm) == ("FP8", "FP8")
    document = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert document["quantization"]["exclude_modules"] == ["lm_head"]
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_it_can_be_converted_on_to_tensorrt_llm_with_the_same_values(tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    convert_to(source, tmp_path / "hf", options(source))
    own = ConversionOptions(quantization="fp8", kv_cache_dtype="fp8", calibration=source / "calibration.json")
    convert_to(source, tmp_path / "direct", own)
    convert_to(tmp_path / "hf", tmp_path / "carried", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    direct, carried = hf_tensors(tmp_path / "direct"), hf_tensors(tmp_path / "carried")
    for name, values in direct.items():
        step = np.abs(values) * 2**-3 + np.abs(values).max() * 2**-9
        assert (np.abs(values - carried[name]) <= (step if "qkv" in name or "self_attn" in name else 0)).all(), name


@pytest.mark.parametrize(("quantization", "kv_cache"), [("none", "auto"), ("int8_weight_only", "fp8")])
def test_what_it_is_not_for_is_refused(quantization: str, kv_cache: str) -> None:
    with pytest.raises(InputError) as caught:
        ConversionOptions(quantization=quantization, kv_cache_dtype=kv_cache, output_format="hf")  # type: ignore[arg-type]
    assert caught.value.code == "CONV-OPTION"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_scales_of_an_fp8_cache_alone_leave_every_weight_as_it_is(family: str, tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source", family)
    asked = replace(options(source), quantization="none")
    convert_to(source, tmp_path / "out", asked)
    before = read_tensors(source / "model.safetensors")
    after = read_tensors(tmp_path / "out" / "model.safetensors")
    assert {name: after[name] for name in before} == before
    scales = {name: to_float(after[name]) for name in after.keys() - before.keys()}
    assert len(scales) == 2 * 3 and all(name.endswith(("k_proj.k_scale", "v_proj.v_scale")) for name in scales)
    assert {float(scale) for scale in scales.values()} == {float(np.float32(44.8 / 448))}
    written = read_quantized(tmp_path / "out")
    assert written is not None
    assert (written.algorithm, written.kv_algorithm) == (None, "FP8")


def test_such_scales_are_carried_on_and_never_invented(tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    asked = replace(options(source), quantization="none")
    convert_to(source, tmp_path / "hf", asked)
    convert_to(tmp_path / "hf", tmp_path / "trt", ConversionOptions(kv_cache_dtype="fp8"))
    tensors = read_tensors(tmp_path / "trt" / "rank0.safetensors")
    for layer in range(3):
        scale = to_float(tensors[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"])
        assert scale == pytest.approx(0.1, rel=1e-6)
    with pytest.raises(InputError, match="CONV-CALIBRATION"):
        convert_to(source, tmp_path / "none", replace(asked, calibration=None))
    phi = calibrated(tmp_path / "phi", "phi3")
    with pytest.raises(InputError, match="CONV-HF-FP8"):
        convert_to(phi, tmp_path / "phi-out", replace(asked, calibration=phi / "calibration.json"))


def test_the_rest_is_cast_where_a_dtype_is_asked_for(tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    convert_to(source, tmp_path / "out", replace(options(source), dtype="float16"))
    after = read_tensors(tmp_path / "out" / "model.safetensors")
    assert {after[name][0] for name in after if "norm" in name or "embed" in name} == {"float16"}
    assert after["model.layers.0.mlp.up_proj.weight"][0] == "float8_e4m3fn"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float16"


def test_gpt2_is_refused_before_any_output(tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source", "gpt2")
    with pytest.raises(InputError) as caught:
        convert_to(source, tmp_path / "out", options(source))
    assert caught.value.code == "CONV-HF-FP8" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("quantization", ["fp8", "nvfp4"])
def test_what_is_fp8_already_is_not_quantised_again(quantization: str, tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    convert_to(source, tmp_path / "once", options(source))
    again = ConversionOptions(quantization=quantization, output_format="hf", calibration_ids=((3, 4, 5),))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError) as caught:
        convert_to(tmp_path / "once", tmp_path / "twice", again)
    assert caught.value.code in ("CKPT-QUANT", "CONV-MODELOPT") and not (tmp_path / "twice").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_warned_of_here_too(value: float, tmp_path: Path) -> None:
    source = calibrated(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    tensors = {name: tiny.tiny_tensor(name, shape) for name, shape in tiny.tensor_shapes("llama", config)}
    for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        tensors[name].reshape(-1)[7] = value
    tiny.write_weights(source, tensors, "bfloat16")
    report = convert_to(source, tmp_path / "out", options(source))
    named = {finding.where.rsplit(":", 1)[1] for finding in report.findings if finding.code == "CKPT-NAN"}
    assert named == {"model.layers.1.mlp.up_proj.weight", "model.norm.weight"}
