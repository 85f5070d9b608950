"""Sources that are FP8 already: bytes and scales are carried over, and what stays behind is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from converted import read_config, read_ranks
from numpy.typing import NDArray
from reassembly import hf_tensors, to_float
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError, InputError, TrtkitError

# Spelling -> the names of a layer's scales below self_attn, and the values they get from (k, v).
SPELLINGS: dict[str, dict[str, str]] = {
    "ModelOpt": {"k_proj.k_scale": "k", "v_proj.v_scale": "v"},
    "compressed-tensors": {"k_scale": "k", "v_scale": "v"},
    "older compressed-tensors": {"k_proj.output_scale": "k", "v_proj.output_scale": "v"},
    "vLLM": {"attn.k_scale": "k", "attn.v_scale": "v"},
    "fused": {"qkv_proj.k_scale": "k", "qkv_proj.v_scale": "v"},
    "AutoFP8": {"kv_scale": "both"},
    "AutoFP8 below attn": {"attn.kv_scale": "both"},
    "mixed": {"k_scale": "k", "v_proj.v_scale": "v"},
}
KV_SCALES = {0: (0.02, 0.03), 1: (0.05, 0.01), 2: (0.04, 0.04)}


def fp8_source(
    folder: Path,
    *,
    per_channel: bool = False,
    but: dict[str, bool] | None = None,
    kv: str | None = "ModelOpt",
    inputs: str | None = "input_scale",
    more: dict[str, NDArray[Any]] | None = None,
) -> Path:
    """A tiny Llama as ModelOpt or compressed-tensors writes it: projections are FP8, `but` says it of parts of names.

    kv: one of SPELLINGS; inputs: how input scales are called; more: further tensors.
    """
    tiny.tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, NDArray[Any]] = {}
    codes: dict[str, str] = {}

    def put(name: str, values: NDArray[Any], code: str = "F32") -> None:
        tensors[name], codes[name] = values, code

    for name, shape in tiny.tensor_shapes("llama", config):
        values = tiny.tiny_tensor(name, shape)
        chosen = next((is_fp8 for part, is_fp8 in (but or {}).items() if part in name), "proj" in name)
        if not chosen:
            put(name, values)
            continue
        axis = 1 if per_channel else None
        scale = np.maximum(np.abs(values).max(axis=axis, keepdims=True), 1e-6).astype(np.float32) / np.float32(448)
        quantized = torch.from_numpy(values / scale).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        put(name, quantized, "F8_E4M3")
        module = name.removesuffix(".weight")
        put(f"{module}.weight_scale", scale if per_channel else scale.reshape(()))
        if inputs and not per_channel:
            put(f"{module}.{inputs}", np.float32(0.01 + len(module) / 1000).reshape(()))
    for layer, (k, v) in KV_SCALES.items() if kv else ():
        for name, which in SPELLINGS[kv or ""].items():
            value = {"k": k, "v": v, "both": max(k, v)}[which]
            put(f"model.layers.{layer}.self_attn.{name}", np.float32(value).reshape(()))
    for name, values in (more or {}).items():
        put(name, values)
    (folder / "model.safetensors").write_bytes(tiny.safetensors_bytes(tensors, codes))
    return folder


def stored(folder: Path, name: str) -> NDArray[np.float32]:
    """The dequantised source tensor."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    return (tensors[name].float() * tensors[f"{name}_scale"].float()).numpy()


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_single_layers_keep_their_bytes_and_scale(tp: int, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source")
    convert_to(
        source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8", tensor_parallel=tp)
    )
    converted = hf_tensors(tmp_path / "out")
    for module in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"model.layers.1.{module}.weight"
        assert np.array_equal(converted[name], stored(source, name)), name


def test_parts_of_a_fused_layer_share_the_largest_scale(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source")
    convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    rank = read_ranks(tmp_path / "out")[0]
    prefix = "model.layers.0.self_attn."
    scales = [float(_source_scalar(source, f"{prefix}{n}_proj.weight_scale")) for n in "qkv"]
    inputs = [float(_source_scalar(source, f"{prefix}{n}_proj.input_scale")) for n in "qkv"]
    stem = "transformer.layers.0.attention.qkv."
    assert to_float(rank[f"{stem}weights_scaling_factor"]) == np.float32(max(scales))
    assert to_float(rank[f"{stem}activation_scaling_factor"]) == np.float32(max(inputs))
    converted = hf_tensors(tmp_path / "out")
    for name in (f"{prefix}{n}_proj.weight" for n in "qkv"):
        values = stored(source, name)
        half_step = np.maximum(np.abs(values) * 2**-4, max(scales) * 2**-10)
        assert (np.abs(converted[name] - values) <= half_step * 1.001).all()


def _source_scalar(source: Path, name: str) -> np.float32:
    from safetensors.torch import load_file

    return np.float32(load_file(source / "model.safetensors")[name].item())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_kv_scales_reach_every_layer_as_the_larger_one(spelling: str, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", kv=spelling)
    report = convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    rank = read_ranks(tmp_path / "out")[0]
    for layer, scales in KV_SCALES.items():
        stem = f"transformer.layers.{layer}.attention.kv_cache"
        assert to_float(rank[f"{stem}_scaling_factor"]) == np.float32(max(scales))
        assert to_float(rank[f"{stem}_rcp_scaling_factor"]) == np.float32(1) / np.float32(max(scales))
    assert not report.findings


def test_a_scale_per_head_gives_the_layer_its_largest(tmp_path: Path) -> None:
    heads = np.array([0.01, 0.08], dtype=np.float32).reshape(2, 1, 1)
    source = fp8_source(tmp_path / "source", more={"model.layers.1.self_attn.k_scale": heads})
    convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    rank = read_ranks(tmp_path / "out")[0]
    assert to_float(rank["transformer.layers.1.attention.kv_cache_scaling_factor"]) == np.float32(0.08)


@pytest.mark.parametrize("spelling", ["input_scale", "act_scale"])
def test_input_scales_are_carried_under_either_name(spelling: str, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", inputs=spelling)
    convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    expected = _source_scalar(source, f"model.layers.2.mlp.down_proj.{spelling}")
    rank = read_ranks(tmp_path / "out")[0]
    assert to_float(rank["transformer.layers.2.mlp.proj.activation_scaling_factor"]) == expected


HOMELESS = (
    "self_attn.q_scale",
    "self_attn.attn.q_scale",
    "self_attn.q_proj.q_scale",
    "self_attn.q_proj.output_scale",
    "self_attn.prob_output_scale",
    "self_attn.attn.prob_scale",
    "self_attn.o_proj.output_scale",
    "mlp.down_proj.output_scale",
)


@pytest.mark.parametrize("name", HOMELESS)
def test_a_scale_that_tensorrt_llm_has_no_place_for_is_named(name: str, tmp_path: Path) -> None:
    full = f"model.layers.1.{name}"
    source = fp8_source(tmp_path / "source", more={full: np.float32(0.5).reshape(())})
    report = convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    assert [(finding.code, finding.where.rsplit(":", 1)[1]) for finding in report.findings] == [
        ("CONV-SCALE-DROPPED", full)
    ]
    rank = read_ranks(tmp_path / "out")[0]
    assert to_float(rank["transformer.layers.1.attention.kv_cache_scaling_factor"]) == np.float32(0.05)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_kv_scales_of_an_unquantised_checkpoint_are_carried_or_named(spelling: str, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", kv=spelling, but={"proj": False}, inputs=None)
    kept = convert_to(source, tmp_path / "kept", ConversionOptions(kv_cache_dtype="fp8"))
    assert not kept.findings
    rank = read_ranks(tmp_path / "kept")[0]
    assert to_float(rank["transformer.layers.0.attention.kv_cache_scaling_factor"]) == np.float32(0.03)
    left = convert_to(source, tmp_path / "left", ConversionOptions())
    assert {finding.where.rsplit("self_attn.", 1)[1] for finding in left.findings} == set(SPELLINGS[spelling])


@pytest.mark.parametrize("tp", [1, 2])
def test_a_head_that_is_fp8_is_multiplied_out_and_its_input_scale_named(tp: int, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", but={"lm_head": True, "embed_tokens": True})
    options = ConversionOptions(dtype="float32", quantization="fp8", kv_cache_dtype="fp8", tensor_parallel=tp)
    report = convert_to(source, tmp_path / "out", options)
    converted = hf_tensors(tmp_path / "out")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert np.array_equal(converted[name], stored(source, name)), name
    named = {finding.where.rsplit(":", 1)[1] for finding in report.findings}
    assert named == {"lm_head.input_scale", "model.embed_tokens.input_scale"}


def test_a_head_with_a_scale_per_channel_is_refused_before_any_output(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", but={"lm_head": True}, per_channel=True)
    with pytest.raises(CheckpointError, match="keeps it in 16 bits") as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8_rowwise"))
    assert caught.value.code == "CKPT-QUANT" and not (tmp_path / "out").exists()


def test_input_scales_that_no_layer_takes_are_named(tmp_path: Path) -> None:
    extra = {"model.layers.0.mlp.up_proj.input_scale": np.float32(0.5).reshape(())}
    source = fp8_source(tmp_path / "rowwise", per_channel=True, more=extra)
    report = convert_to(source, tmp_path / "a", ConversionOptions(quantization="fp8_rowwise", kv_cache_dtype="fp8"))
    assert [finding.where.rsplit(":", 1)[1] for finding in report.findings] == list(extra)
    plain = fp8_source(
        tmp_path / "partly", but={"layers.1.mlp.down_proj": False}, more={_DOWN: np.float32(0.5).reshape(())}
    )
    report = convert_to(plain, tmp_path / "b", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    assert [finding.where.rsplit(":", 1)[1] for finding in report.findings] == [_DOWN]


_DOWN = "model.layers.1.mlp.down_proj.input_scale"


def test_kv_scales_that_a_calibration_replaces_are_named(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source")
    measured = {str(layer): {"k": 44.8, "v": 1.0} for layer in range(3)}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"schema": "trtkit.calibration/1", "kv_cache": measured}))
    options = ConversionOptions(quantization="fp8", kv_cache_dtype="fp8", calibration=path)
    report = convert_to(source, tmp_path / "out", options)
    rank = read_ranks(tmp_path / "out")[0]
    scale = to_float(rank["transformer.layers.0.attention.kv_cache_scaling_factor"])
    assert scale == pytest.approx(0.1)
    assert len([finding for finding in report.findings if "gives way" in finding.cause]) == 6


def test_a_zero_point_is_fine_as_long_as_it_is_zero(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight_zero_point"
    source = fp8_source(tmp_path / "zero", more={name: np.zeros(1, np.float32)})
    options = ConversionOptions(quantization="fp8", kv_cache_dtype="fp8")
    assert not convert_to(source, tmp_path / "out", options).findings
    source = fp8_source(tmp_path / "other", more={name: np.ones(1, np.float32)})
    with pytest.raises(CheckpointError, match="asymmetric") as caught:
        convert_to(source, tmp_path / "refused", options)
    assert caught.value.code == "CKPT-QUANT" and not (tmp_path / "refused").exists()


def test_scales_that_stay_behind_are_named_one_by_one(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source")
    report = convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8"))
    named = {finding.where.rsplit(":", 1)[1] for finding in report.findings}
    assert named == {f"model.layers.{layer}.self_attn.{n}_proj.{n}_scale" for layer in range(3) for n in "kv"}
    assert {finding.code for finding in report.findings} == {"CONV-SCALE-DROPPED"}


@pytest.mark.parametrize("tp", [1, 2])
def test_scales_per_channel_need_no_requantisation(tp: int, tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", per_channel=True)
    options = ConversionOptions(quantization="fp8_rowwise", kv_cache_dtype="fp8", tensor_parallel=tp)
    convert_to(source, tmp_path / "out", options)
    converted = hf_tensors(tmp_path / "out")
    for module in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"):
        name = f"model.layers.2.{module}.weight"
        assert np.array_equal(converted[name], stored(source, name)), name
    quantization = read_config(tmp_path / "out")["quantization"]
    assert quantization["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
    assert not quantization["use_meta_recipe"]


def test_layers_that_the_source_left_alone_stay_so_and_are_excluded(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source", but={"layers.1.mlp.down_proj": False})
    convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", kv_cache_dtype="fp8"))
    assert read_ranks(tmp_path / "out")[0]["transformer.layers.1.mlp.proj.weight"][0] == "float16"
    excluded = read_config(tmp_path / "out")["quantization"]["exclude_modules"]
    assert "*lm_head" in excluded and "transformer.layers.1.mlp.proj" in excluded


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({}, {"quantization": "none"}, "CKPT-QUANT"),
        ({"per_channel": True}, {"quantization": "fp8"}, "CKPT-QUANT"),
        ({"but": {"layers.1.self_attn.k_proj": False}}, {"quantization": "fp8"}, "CKPT-QUANT"),
        ({"inputs": None}, {"quantization": "fp8"}, "CONV-CALIBRATION"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_before_any_output(
    changes: dict[str, Any], options: dict[str, Any], code: str, tmp_path: Path
) -> None:
    source = fp8_source(tmp_path / "source", **changes)
    with pytest.raises(TrtkitError) as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(**options))
    assert caught.value.code == code
    assert not (tmp_path / "out").exists()


def test_a_scale_that_is_zero_is_refused(tmp_path: Path) -> None:
    source = fp8_source(tmp_path / "source")
    from safetensors.torch import load_file, save_file

    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.k_scale"] *= 0
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8"))
    assert caught.value.code == "CKPT-SCALE"


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"schema": "trtkit.calibration/1", "inputs": 3}'])
def test_a_calibration_file_that_is_none_is_named_before_any_output(text: str | None, tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    path = tmp_path / "calibration.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="trtkit calibrate") as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(quantization="fp8", calibration=path))
    assert caught.value.code == "CONV-CALIBRATION" and str(path) in str(caught.value.where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"quantization": "fp8"}, {"kv_cache_dtype": "int8"}])
def test_static_scales_need_a_calibration(options: dict[str, Any], tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    with pytest.raises(InputError, match="calibrate") as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(**options))
    assert caught.value.code == "CONV-CALIBRATION"
    assert not (tmp_path / "out").exists()


def test_an_fp8_cache_without_scales_gets_the_constant_one_and_says_so(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    report = convert_to(source, tmp_path / "out", ConversionOptions(kv_cache_dtype="fp8"))
    assert [finding.code for finding in report.findings] == ["CONV-KV-CONSTANT"]
    rank = read_ranks(tmp_path / "out")[0]
    scales = {name: to_float(tensor) for name, tensor in rank.items() if "scaling_factor" in name}
    assert len(scales) == 6 and all(value == 1.0 for value in scales.values())
