"""Planned bytes are the bytes that the converter and the reference engine really take."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from converted import read_ranks
from tiny import FAMILIES, tiny_checkpoint, write_json
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.weights import open_weights
from trtkit.config.load import parse_config
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.planning.model_plan import model_plan
from trtkit.planning.split import Split
from trtkit.planning.tensors import rank_tensors
from trtkit.planning.weights import BY_MODELOPT, WeightFormat, rank_bytes

SPLITS = [Split(), Split(tensor=2), Split(tensor=4), Split(pipeline=2), Split(tensor=2, pipeline=3)]
# Packed weights come in tiles of 64 rows and columns.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
MIXTURES = [family for family in FAMILIES if "moe" in family or family == "mixtral"]


def convert(folder: Path, family: str, split: Split, **options: Any) -> tuple[Path, Path]:
    """(source, converted) of a tiny model."""
    source = tiny_checkpoint(folder / "source", family)
    out = folder / "out"
    parallel = {"tensor_parallel": split.tensor, "pipeline_parallel": split.pipeline, "expert_parallel": split.expert}
    convert_to(source, out, ConversionOptions(dtype="float16", **parallel, **options))
    return source, out


def assert_planned(source: Path, out: Path, split: Split, weights: WeightFormat) -> None:
    spec, ranks = read_model_spec(source), read_ranks(out)
    assert len(ranks) == split.num_ranks
    for rank, tensors in enumerate(ranks):
        written = sum(len(data) for _, _, data in tensors.values())
        assert rank_bytes(spec, split, weights, rank) == written, f"rank {rank}"


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_per_rank_are_exact(family: str, split: Split, tmp_path: Path) -> None:
    source, out = convert(tmp_path, family, split)
    assert_planned(source, out, split, WeightFormat("float16"))


@pytest.mark.parametrize("family", MIXTURES)
def test_weights_of_experts_spread_over_ranks_are_exact(family: str, tmp_path: Path) -> None:
    split = Split(tensor=4, expert=2)
    source, out = convert(tmp_path, family, split)
    assert_planned(source, out, split, WeightFormat("float16"))


def write_calibration(folder: Path, source: Path) -> Path:
    """Maxima for every linear layer and every cache of a tiny model."""
    names = [name.removesuffix(".weight") for name in open_weights(source) if name.endswith(".weight")]
    caches = {str(layer): {"k": 2.0, "v": 1.0} for layer in range(read_model_spec(source).num_layers)}
    path = folder / "calibration.json"
    write_json(path, {"schema": "trtkit.calibration/1", "inputs": dict.fromkeys(names, 3.0), "kv_cache": caches})
    return path


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("quantization", ["fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only"])
@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2_moe", "phi3", "gpt2"])
def test_quantised_weights_are_exact_too(family: str, quantization: Any, kv_dtype: Any, tmp_path: Path) -> None:
    split = Split(tensor=2)
    source = tiny_checkpoint(tmp_path / "source", family, **WIDE)
    options = ConversionOptions(
        dtype="float16",
        tensor_parallel=2,
        quantization=quantization,
        kv_cache_dtype=kv_dtype,
        calibration=write_calibration(tmp_path, source),
    )
    convert_to(source, tmp_path / "out", options)
    assert_planned(source, tmp_path / "out", split, WeightFormat("float16", quantization, kv_dtype))


IDS = tuple(tuple((7919 * text + token) % 250 for token in range(64)) for text in range(8))


def assert_exported_as_planned(folder: Path, family: str, quantization: Any, split: Split, kv_dtype: Any) -> None:
    """nvidia-modelopt calibrates, packs and exports a tiny model; its bytes must be the planned ones."""
    # 250 is no multiple of 64, to which the vocabulary is padded for AWQ; Gemma's tied head cannot be padded.
    shape = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 256 if family == "gemma" else 250}
    source = tiny_checkpoint(folder / "source", family, "bfloat16", **shape)
    options = ConversionOptions(
        dtype="bfloat16",
        tensor_parallel=split.tensor,
        pipeline_parallel=split.pipeline,
        quantization=quantization,
        kv_cache_dtype=kv_dtype,
        calibration_ids=IDS,
    )
    convert_to(source, folder / "out", options)
    assert_planned(source, folder / "out", split, WeightFormat("bfloat16", quantization, kv_dtype))


with_modelopt = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="nvidia-modelopt is not installed: pip install 'trtkit[quantize]'",
)


@with_modelopt
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantization", sorted(BY_MODELOPT))
def test_what_modelopt_exports_is_exact_too(quantization: str, tmp_path: Path) -> None:
    assert_exported_as_planned(tmp_path, "llama", quantization, Split(tensor=2), "fp8")


@with_modelopt
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("split", [Split(), Split(tensor=2), Split(pipeline=3)], ids=str)
@pytest.mark.parametrize("quantization", sorted(BY_MODELOPT))
@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma", "gpt2"])
def test_so_it_is_in_other_families_and_layouts(family: str, quantization: str, split: Split, tmp_path: Path) -> None:
    assert_exported_as_planned(tmp_path, family, quantization, split, "auto")


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_those_of_the_converter(family: str, tmp_path: Path) -> None:
    split = Split(tensor=2, pipeline=2)
    source, out = convert(tmp_path, family, split)
    spec = read_model_spec(source)
    for rank, tensors in enumerate(read_ranks(out)):
        planned = {tensor.name: tensor.shape for tensor in rank_tensors(spec, split, rank)}
        assert planned == {name: shape for name, (_, shape, _) in tensors.items()}


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8", "int4"])
@pytest.mark.parametrize("max_seq_len", [64, 100])
def test_the_cache_of_the_reference_engine_is_exact(max_seq_len: int, kv_dtype: Any, tmp_path: Path) -> None:
    from trtkit.reference.engine import Engine
    from trtkit.reference.kv_cache.options import CacheOptions

    source = tiny_checkpoint(tmp_path / "source", "llama")
    # The converter writes no INT4 scales; that cache computes its own.
    stored = "auto" if kv_dtype == "int4" else kv_dtype
    calibration = write_calibration(tmp_path, source) if stored == "int8" else None
    options = ConversionOptions(dtype="float16", kv_cache_dtype=stored, calibration=calibration)
    convert_to(source, tmp_path / "out", options)
    document = {
        "name": "tiny",
        "target": {"checkpoint": "x", "dtype": "float16"},
        "kv_cache": {"dtype": kv_dtype},
        "limits": {"max_batch_size": 3, "max_input_len": max_seq_len - 1, "max_output_len": 1},
    }
    planned = model_plan("target", read_model_spec(source), parse_config(document, where="tiny"))
    cache = CacheOptions(dtype="int4" if kv_dtype == "int4" else "auto", block_size=32)
    engine = Engine.load(tmp_path / "out", max_batch_size=3, max_seq_len=max_seq_len, cache=cache)
    assert planned.reference_cache_bytes == engine.cache_bytes


@pytest.mark.parametrize("window_tokens", [20, 200, 1000])
def test_a_cache_with_sinks_is_exact_and_does_not_grow_with_the_limits(window_tokens: int, tmp_path: Path) -> None:
    from trtkit.reference.engine import Engine
    from trtkit.reference.kv_cache.options import CacheOptions

    source = tiny_checkpoint(tmp_path / "source", "llama")
    convert_to(source, tmp_path / "out", ConversionOptions(dtype="float16"))
    document = {
        "name": "tiny",
        "target": {"checkpoint": "x", "dtype": "float16"},
        "attention_sinks": {"sink_tokens": 4, "window_tokens": window_tokens, "strategy": "engine"},
        "limits": {"max_batch_size": 3, "max_input_len": 100_000, "max_output_len": 1},
    }
    planned = model_plan("target", read_model_spec(source), parse_config(document, where="tiny"))
    cache = CacheOptions(block_size=32, sink_tokens=4, window_tokens=window_tokens)
    engine = Engine.load(tmp_path / "out", max_batch_size=3, max_seq_len=100, cache=cache)
    assert planned.reference_cache_bytes == engine.cache_bytes
