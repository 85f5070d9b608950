"""Quantised checkpoints give the logits of transformers with dequantised weights and rounded inputs, in float32.

Rounding an input is a step function: where the two sides' last bits differ, a code may come out one step apart, which
moves one input by up to 6 %, and then the positions that see it. Formats that round inputs are held to the best tenth
of positions, in units of what quantising changes there: a wrong scale or weight moves every one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import largest_relative_difference, load_oracle, oracle_logits, prompt_of
from quantized_oracle import (
    dequantised,
    fp8_per_token,
    fp8_static,
    input_maxima,
    rounding_inputs,
    write_calibration,
)
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, VOCAB_SIZE, tiny_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 3}
MOE_SIZES: dict[str, Any] = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 128}
WEIGHT_ONLY = ("int8_weight_only", "int4_weight_only")
DENSE = ("llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2")
Source = Callable[[str], Path]
TOKENS = prompt_of(60, VOCAB_SIZE)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("quantized")

    def source(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            extra = MOE_SIZES if family in ("qwen2_moe", "qwen3_moe") else {}
            tiny_checkpoint(folder, family, **{**SIZES, **extra})
        return folder

    return source


def converted(source: Path, out: Path, **options: Any) -> Path:
    out.mkdir()
    convert_checkpoint(source, out, ConversionOptions(**{"dtype": "float32", **options}))
    return out


def our_logits(folder: Path) -> torch.Tensor:
    return lone_sequence(folder).feed(TOKENS)


def quantisation_error(ours: torch.Tensor, theirs: torch.Tensor, plain: torch.Tensor) -> float:
    """How far two quantised models are apart, in units of what quantising changed, at the best tenth of positions."""
    return float(((ours - theirs).norm(dim=1) / (theirs - plain).norm(dim=1)).quantile(0.1))


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
@pytest.mark.parametrize("family", FAMILIES)
def test_weight_only_logits_are_those_of_the_dequantised_model(
    family: str, quantization: str, sources: Source, tmp_path: Path
) -> None:
    source = sources(family)
    out = converted(source, tmp_path / "out", quantization=quantization)
    theirs = oracle_logits(dequantised(source, out, tmp_path / "hf"), TOKENS)
    assert largest_relative_difference(our_logits(out), theirs) < 1e-4


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", DENSE)
def test_fp8_logits_are_those_of_rounded_inputs_and_weights(
    family: str, tp: int, sources: Source, tmp_path: Path
) -> None:
    source = sources(family)
    maxima = input_maxima(source)
    calibration = write_calibration(tmp_path / "calibration.json", maxima)
    out = converted(source, tmp_path / "out", quantization="fp8", calibration=calibration, tensor_parallel=tp)
    model = rounding_inputs(
        dequantised(source, out, tmp_path / "hf"), lambda name: fp8_static(float(torch.tensor(maxima[name] / 448)))
    )
    theirs, plain = oracle_logits(model, TOKENS), oracle_logits(load_oracle(source), TOKENS)
    assert quantisation_error(our_logits(out), theirs, plain) < 1e-4


def test_fp8_rowwise_logits_are_those_of_token_scales(sources: Source, tmp_path: Path) -> None:
    """The MLPs of the inner layers alone (Meta's recipe), here the second of three."""
    source = sources("llama")
    out = converted(source, tmp_path / "out", quantization="fp8_rowwise")
    model = rounding_inputs(
        dequantised(source, out, tmp_path / "hf"), lambda name: fp8_per_token if "layers.1.mlp" in name else None
    )
    theirs, plain = oracle_logits(model, TOKENS), oracle_logits(load_oracle(source), TOKENS)
    assert quantisation_error(our_logits(out), theirs, plain) < 1e-4


@pytest.mark.parametrize("layout", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
def test_weight_only_ranks_are_unpacked_one_by_one(
    quantization: str, layout: tuple[int, int], sources: Source, tmp_path: Path
) -> None:
    tp, ep = layout
    source = sources("qwen2_moe" if ep > 1 else "llama")
    parallelism = {"tensor_parallel": max(tp, ep), "expert_parallel": ep}
    out = converted(source, tmp_path / "out", quantization=quantization, **parallelism)
    theirs = oracle_logits(dequantised(source, out, tmp_path / "hf"), TOKENS)
    assert largest_relative_difference(our_logits(out), theirs) < 1e-4


def test_weight_only_for_hopper_is_read_in_its_own_order(sources: Source, tmp_path: Path) -> None:
    ampere, hopper = (
        converted(sources("mixtral"), tmp_path / str(arch), quantization="int4_weight_only", weight_only_arch=arch)
        for arch in (80, 90)
    )
    assert (ampere / "rank0.safetensors").read_bytes() != (hopper / "rank0.safetensors").read_bytes()
    assert torch.equal(our_logits(ampere), our_logits(hopper))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_changes_less_than_fp8_does(dtype: str, sources: Source, tmp_path: Path) -> None:
    source = sources("llama")
    calibration = write_calibration(tmp_path / "calibration.json", input_maxima(source))
    wide, narrow = (
        our_logits(converted(source, tmp_path / name, quantization="fp8", calibration=calibration, dtype=name))
        for name in ("float32", dtype)
    )
    plain = oracle_logits(load_oracle(source), TOKENS)
    assert quantisation_error(narrow, wide, plain) < 0.8


@pytest.mark.parametrize(
    ("algorithm", "missing", "words"),
    [
        (None, None, "stored as float8_e4m3fn, and config.json names no quant_algo"),
        ("FP8", "transformer.layers.1.mlp.fc.weights_scaling_factor", "stored as float8_e4m3fn, and it has no scale"),
        ("W8A16", None, "weight and its scales do not fit"),
    ],
)
def test_codes_that_the_config_does_not_explain_are_refused(
    algorithm: str | None, missing: str | None, words: str, sources: Source, tmp_path: Path
) -> None:
    source = sources("llama")
    calibration = write_calibration(tmp_path / "calibration.json", input_maxima(source))
    out = converted(source, tmp_path / "out", quantization="fp8", calibration=calibration)
    config = json.loads((out / "config.json").read_text())
    config["quantization"]["quant_algo"] = algorithm
    (out / "config.json").write_text(json.dumps(config))
    tensors = load_file(out / "rank0.safetensors")
    tensors.pop(missing or "", None)
    save_file(tensors, out / "rank0.safetensors")
    with pytest.raises(CheckpointError, match=words):
        our_logits(out)
