"""A converted checkpoint: rank files, expected tensors and the audit of KV scales, each with a near miss."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny import FAMILIES, safetensors_bytes, tiny_checkpoint
from trtkit.checking.folder_checks import check_trtllm_checkpoint
from trtkit.checking.rules.scales import SCALE_RULES
from trtkit.checking.rules.trtllm_checkpoint import TRTLLM_CHECKPOINT_RULES
from trtkit.checking.scales import audit_scales
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions

SCALE = "transformer.layers.{layer}.attention.kv_cache_scaling_factor"
NUM_LAYERS = 3


def converted(folder: Path, family: str = "llama", **options: Any) -> Path:
    out = folder / "out"
    convert_to(tiny_checkpoint(folder / "source", family), out, ConversionOptions(dtype="float32", **options))
    return out


def read_rank(folder: Path, rank: int = 0) -> dict[str, Any]:
    tensors = {}
    path = folder / f"rank{rank}.safetensors"
    for tensor in read_header(path):
        data = path.read_bytes()[tensor.start : tensor.stop]
        tensors[tensor.name] = np.frombuffer(data, dtype="<f4").reshape(tensor.shape)
    return tensors


def write_rank(folder: Path, tensors: Mapping[str, Any], rank: int = 0) -> None:
    (folder / f"rank{rank}.safetensors").write_bytes(safetensors_bytes(dict(tensors), "float32"))


def with_scales(folder: Path, scales: Mapping[int, float]) -> Path:
    """An FP8-KV checkpoint with these scales per layer."""
    out = converted(folder)
    document = json.loads((out / "config.json").read_text())
    document["quantization"]["kv_cache_quant_algo"] = "FP8"
    (out / "config.json").write_text(json.dumps(document))
    added = {SCALE.format(layer=layer): np.array([value], dtype="<f4") for layer, value in scales.items()}
    write_rank(out, {**read_rank(out), **added})
    return out


def codes(folder: Path) -> set[str]:
    return {finding.code for finding in check_trtllm_checkpoint(folder)}


def test_every_rule_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [rule.code for rule in (*TRTLLM_CHECKPOINT_RULES, *SCALE_RULES) if f'"{rule.code}"' not in text] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_converter_writes_gives_no_finding(family: str, tmp_path: Path) -> None:
    assert check_trtllm_checkpoint(converted(tmp_path, family, tensor_parallel=2, pipeline_parallel=2)) == []


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_cut_embedding_gives_no_finding(dimension: Any, tmp_path: Path) -> None:
    out = converted(tmp_path, tensor_parallel=2, use_parallel_embedding=True, embedding_sharding_dim=dimension)
    assert check_trtllm_checkpoint(out) == []


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    out = converted(tmp_path, tensor_parallel=2)
    (out / "rank1.safetensors").unlink()
    (finding,) = check_trtllm_checkpoint(out)
    assert (finding.code, finding.cause) == ("TRT-RANKS", "rank1.safetensors missing; config.json announces 2 ranks")


def test_a_missing_tensor_is_named_and_an_absent_tied_head_is_none(tmp_path: Path) -> None:
    out = converted(tmp_path)
    tensors = read_rank(out)
    write_rank(out, {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    assert codes(out) == set()
    write_rank(out, {name: tensor for name, tensor in tensors.items() if name != "transformer.ln_f.weight"})
    (finding,) = check_trtllm_checkpoint(out)
    assert (finding.code, finding.cause) == ("TRT-MISSING", "1 tensors missing: transformer.ln_f.weight")


def test_a_weight_without_a_place_is_a_warning_and_a_scale_is_none(tmp_path: Path) -> None:
    out = converted(tmp_path)
    tensors = read_rank(out)
    write_rank(out, {**tensors, "transformer.layers.0.mlp.fc.weights_scaling_factor": np.ones(1, "<f4")})
    assert codes(out) == set()
    write_rank(out, {**tensors, "transformer.layers.0.mlp.extra.weight": np.ones(1, "<f4")})
    assert {(f.code, f.severity) for f in check_trtllm_checkpoint(out)} == {("TRT-EXTRA", "warning")}


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    out = converted(tmp_path)
    write_rank(out, {**read_rank(out), "transformer.ln_f.weight": np.ones(63, "<f4")})
    (finding,) = check_trtllm_checkpoint(out)
    assert finding.code == "TRT-SHAPE"
    assert "transformer.ln_f.weight has shape [63]" in finding.cause


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ({}, {("SCALE-ABSENT", "error")}),
        ({0: 0.01, 2: 0.02}, {("SCALE-INCOMPLETE", "error")}),
        ({0: 0.01, 1: 0.0, 2: 0.02}, {("SCALE-INVALID", "error")}),
        ({0: 0.01, 1: -0.5, 2: 0.02}, {("SCALE-INVALID", "error")}),
        ({0: 0.01, 1: float("nan"), 2: 0.02}, {("SCALE-INVALID", "error")}),
        ({0: 1.0, 1: 1.0, 2: 1.0}, {("SCALE-CONSTANT", "warning")}),
        ({0: 1.0, 1: 1.0, 2: 1.5}, {("SCALE-CLAMPED", "warning")}),
        ({0: 0.3, 1: 0.3, 2: 0.3}, {("SCALE-CONSTANT", "warning")}),
        ({0: 0.003, 1: 0.02, 2: 0.05}, {("SCALE-CALIBRATED", "note")}),
        ({0: 0.0625, 1: 0.0625, 2: 0.0625}, {("SCALE-CALIBRATED", "note")}),
    ],
    ids=["absent", "incomplete", "zero", "negative", "nan", "ones", "clamped", "constant", "calibrated", "octave"],
)
def test_the_scale_audit_gives_its_verdict(
    scales: dict[int, float], verdict: set[tuple[str, str]], tmp_path: Path
) -> None:
    assert {(f.code, f.severity) for f in check_trtllm_checkpoint(with_scales(tmp_path, scales))} == verdict


def test_an_incomplete_audit_names_the_layer(tmp_path: Path) -> None:
    (finding,) = check_trtllm_checkpoint(with_scales(tmp_path, {0: 0.01, 2: 0.02}))
    assert finding.cause.endswith(": 1")


def test_scales_are_not_asked_of_a_checkpoint_without_a_quantised_cache(tmp_path: Path) -> None:
    assert codes(converted(tmp_path)) == set()


def test_the_figures_of_the_audit() -> None:
    audit = audit_scales({0: [0.5], 1: [1.0], 2: [2.0]}, NUM_LAYERS)
    assert (audit.smallest, audit.median, audit.largest, audit.num_ones) == (0.5, 1.0, 2.0, 1)
    assert not audit.clamped


def test_the_median_of_an_even_number_of_scales_lies_between_two() -> None:
    assert audit_scales({0: [0.5], 1: [1.5], 2: [0.1], 3: [7.0]}, 4).median == 1.0


@pytest.mark.parametrize(("scale", "verdict"), [(0.3, "calibrated"), (0.5, "calibrated"), (1.0, "constant")])
def test_a_single_layer_has_no_other_to_be_equal_to(scale: float, verdict: str) -> None:
    assert audit_scales({0: [scale]}, 1).verdict == verdict


def test_scales_of_double_precision_are_scales(tmp_path: Path) -> None:
    out = with_scales(tmp_path, {0: 0.01, 1: 0.02})
    rank = out / "rank0.safetensors"
    save_file({**load_file(rank), SCALE.format(layer=2): np.array([0.03], "<f8")}, rank)
    assert "SCALE-CALIBRATED" in codes(out)


def test_the_fix_of_clamped_scales_is_no_export_that_clamps(tmp_path: Path) -> None:
    """Also the ModelOpt of today clamps what it exports for TensorRT-LLM."""
    (finding,) = check_trtllm_checkpoint(with_scales(tmp_path, {0: 1.0, 1: 1.0, 2: 1.5}))
    assert finding.fix.startswith("measure and convert with trtkit (`trtkit calibrate`)")


def test_scales_chosen_as_powers_of_two_do_not_look_clamped() -> None:
    assert not audit_scales({0: [1.0], 1: [4.0], 2: [2.0]}, NUM_LAYERS).clamped
    assert audit_scales({0: [1.0], 1: [4.0], 2: [2.5]}, NUM_LAYERS).clamped


def test_keys_and_values_may_have_scales_of_their_own(tmp_path: Path) -> None:
    out = with_scales(tmp_path, {0: 0.01, 1: 0.02})
    apart = {SCALE.format(layer=2).replace("kv_cache", half): np.array([0.1], "<f4") for half in ("k_cache", "v_cache")}
    write_rank(out, {**read_rank(out), **apart})
    assert codes(out) == {"SCALE-CALIBRATED"}


@pytest.mark.parametrize("half", ["k_cache", "v_cache"])
def test_a_scale_for_keys_or_values_alone_is_half_a_scale(half: str, tmp_path: Path) -> None:
    out = with_scales(tmp_path, {0: 0.01, 1: 0.02})
    write_rank(out, {**read_rank(out), SCALE.format(layer=2).replace("kv_cache", half): np.array([0.1], "<f4")})
    (finding,) = check_trtllm_checkpoint(out)
    assert finding.code == "SCALE-INCOMPLETE" and finding.cause.endswith(": 2")


@pytest.mark.parametrize("text", ["{}", "[]", "nothing"])
def test_a_config_that_is_none_is_one_finding(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert codes(tmp_path) == {"TRT-CONFIG"}


@pytest.mark.parametrize(
    ("token_ids", "found"), [([0, 5, 9], set()), ([5, 5], {"CKPT-VOCABULARY"}), ([10**6], {"CKPT-VOCABULARY"})]
)
def test_a_drafts_own_vocabulary_is_rising_ids_of_the_model(
    token_ids: list[int], found: set[str], tmp_path: Path
) -> None:
    folder = converted(tmp_path)
    (folder / "draft_vocabulary.json").write_text(json.dumps({"token_ids": token_ids}))
    assert codes(folder) == found


@pytest.mark.parametrize("quantization", ["fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"])
def test_a_quantised_weight_without_its_scale_is_named(quantization: Any, tmp_path: Path) -> None:
    """The first test that this checkpoint is whole; then one scale goes."""
    source = tiny_checkpoint(tmp_path / "source", "llama", hidden_size=128, intermediate_size=256)
    names = [name.removesuffix(".weight") for name in open_weights(source) if name.endswith(".weight")]
    calibration = tmp_path / "calibration.json"
    document = {"schema": "trtkit.calibration/1", "inputs": dict.fromkeys(names, 3.0), "kv_cache": {}}
    calibration.write_text(json.dumps(document))
    out = tmp_path / "out"
    convert_to(source, out, ConversionOptions(dtype="float16", quantization=quantization, calibration=calibration))
    assert codes(out) == set()
    path = out / "rank0.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    scale = b"per_channel_scale" if b"per_channel_scale" in header else b"activation_scaling_factor"
    path.write_bytes(data[:8] + header.replace(scale, scale.swapcase(), 1) + data[8 + length :])
    (finding,) = check_trtllm_checkpoint(out)
    assert finding.code == "TRT-SCALES" and scale.decode() in finding.cause
