"""Every cell of the table in docs/conversion-matrix.md, proven by putting the ranks together again."""

import json
from collections.abc import Callable
from pathlib import Path

import conversion_matrix as matrix
import numpy as np
import pytest
import tiny
import torch
from converted import read_config, read_ranks, read_tensors
from numpy.typing import NDArray
from reassembly import hf_tensors, to_float
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

Array = NDArray[np.float32]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "vocab_size": 321}
MOE_SIZES = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
KV_MAXIMA = {"0": {"k": 2.0, "v": 3.0}, "1": {"k": 7.0, "v": 1.0}, "2": {"k": 4.0, "v": 4.5}}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One float32 checkpoint per family, with a vocabulary that no tp divides and tiles for weight-only kernels."""
    root = tmp_path_factory.mktemp("sources")

    def source(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            extra = MOE_SIZES if family in ("qwen2_moe", "qwen3_moe") else {}
            tiny.tiny_checkpoint(folder, family, **SIZES, **extra)
            _write_calibration(folder)
        return folder

    return source


def _write_calibration(folder: Path) -> None:
    names = read_tensors(folder / "model.safetensors")
    inputs = {name.removesuffix(".weight"): 8.0 for name, tensor in names.items() if len(tensor[1]) == 2}
    document = {"schema": "trtkit.calibration/1", "inputs": inputs, "kv_cache": KV_MAXIMA}
    (folder / "calibration.json").write_text(json.dumps(document))


def _options(cell: matrix.Cell, source: Path) -> ConversionOptions:
    tp, pp, ep = cell.layout
    own = cell.precision
    return ConversionOptions(
        dtype=own if own in ("float16", "bfloat16") else "float32",  # type: ignore[arg-type]
        tensor_parallel=tp,
        pipeline_parallel=pp,
        expert_parallel=ep,
        quantization=own if own in matrix.PRECISIONS[3:] else "none",  # type: ignore[arg-type]
        kv_cache_dtype=own.removeprefix("kv_") if own.startswith("kv_") else "auto",  # type: ignore[arg-type]
        calibration=source / "calibration.json",
    )


@pytest.mark.parametrize("cell", matrix.own_cells(), ids=lambda cell: cell.name)
def test_the_ranks_together_are_the_source(cell: matrix.Cell, sources: Callable[[str], Path], tmp_path: Path) -> None:
    source = sources(cell.family)
    if cell.refusal:
        with pytest.raises(CheckpointError) as caught:
            convert_checkpoint(source, tmp_path, _options(cell, source))
        assert caught.value.code == cell.refusal
        assert not list(tmp_path.iterdir())
        return
    convert_checkpoint(source, tmp_path, _options(cell, source))
    original = {name: to_float(tensor) for name, tensor in read_tensors(source / "model.safetensors").items()}
    converted = hf_tensors(tmp_path)
    head = converted.pop("lm_head.weight", None) if "lm_head.weight" not in original else None
    assert converted.keys() == original.keys()
    gemma = cell.family.startswith("gemma")
    for name, values in original.items():
        is_norm_plus_one = gemma and "norm" in name
        is_router = "block_sparse_moe.gate" in name or "mlp.gate.weight" in name
        precision = "float32" if is_router else cell.precision
        error = np.abs(converted[name] - _rounded(values, precision, is_norm_plus_one))
        assert (error <= _bound(name, values, cell.precision) + (1e-6 if is_norm_plus_one else 0)).all(), name
    if head is not None:
        table = "transformer.wte.weight" if cell.family == "gpt2" else "model.embed_tokens.weight"
        assert np.array_equal(head, converted[table]), "a tied head is the embedding"
    if cell.precision == "float32":
        _same_logits(source, converted)
    if cell.precision.startswith("kv_"):
        _kv_scales(cell, tmp_path)


def _rounded(values: Array, precision: str, add_one: bool) -> Array:
    """The source in the target dtype, rounded as PyTorch rounds it; a norm's 1 is added before the rounding."""
    if precision not in ("float16", "bfloat16"):
        return values
    one = 1.0 if add_one else 0.0
    return ((torch.from_numpy(values.copy()) + one).to(getattr(torch, precision)).float() - one).numpy()


def _bound(name: str, values: Array, precision: str) -> Array:
    """Largest allowed error: half a step of the format (FP8 has 3 mantissa bits; integers one step at +max)."""
    is_linear = values.ndim == 2 and not any(
        part in name for part in ("embed", "wte", "wpe", "lm_head", "block_sparse_moe.gate", "mlp.gate.", "expert_gate")
    )
    if not is_linear or precision not in matrix.PRECISIONS[3:]:
        return np.zeros_like(values)
    largest = np.abs(values).max()
    if precision.startswith("fp8"):
        return np.maximum(np.abs(values) * 2**-4, largest / 448 * 2**-9) * 1.001
    return np.full_like(values, largest / (128 if "int8" in precision else 8) * 1.001)


def _same_logits(source: Path, converted: dict[str, Array]) -> None:
    """transformers with the converted weights gives its own logits for the source, within 1e-4 relative."""
    from transformers import AutoConfig, AutoModelForCausalLM

    ids = torch.arange(3, 35)[None]
    config = AutoConfig.from_pretrained(source)
    expected = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.inference_mode():
        reference = expected(ids).logits
        folder = source.parent / f"{source.name}-converted"
        folder.mkdir(exist_ok=True)
        tiny.write_weights(folder, converted, "float32")
        tiny.write_json(folder / "config.json", json.loads((source / "config.json").read_text()))
        logits = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)(ids).logits
    assert (logits - reference).abs().max() <= 1e-4 * reference.abs().max()


def _kv_scales(cell: matrix.Cell, folder: Path) -> None:
    """Every rank of the stage that holds a layer carries its scale, the reciprocal, and those of keys and values."""
    largest = {"fp8": 448.0, "int8": 127.0}[cell.precision.removeprefix("kv_")]
    pp = cell.layout[1]
    first_of_stage = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(3), pp))])
    for index, rank in enumerate(read_ranks(folder)):
        first = int(first_of_stage[index // cell.layout[0]])
        names = [name for name in rank if name.endswith("kv_cache_scaling_factor")]
        assert names
        for name in names:
            layer = str(first + int(name.split(".")[2]))
            expected = np.float32(max(KV_MAXIMA[layer].values()) / largest)
            assert to_float(rank[name]) == expected
            assert to_float(rank[name.replace("scaling", "rcp_scaling")]) == np.float32(1) / expected
            for part, maximum in KV_MAXIMA[layer].items():
                assert to_float(rank[name.replace("kv_cache", f"{part}_cache")]) == np.float32(maximum / largest)
    assert read_config(folder)["quantization"]["kv_cache_quant_algo"] == cell.precision.removeprefix("kv_").upper()


def test_the_page_shows_these_cells() -> None:
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.render(), "run: python tests/conversion_matrix.py"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_transformers_finds_every_weight_of_a_tiny_checkpoint(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny.tiny_checkpoint(tmp_path, family)
    _, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
