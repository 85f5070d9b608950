"""Every recorded conversion of TensorRT-LLM's own converter is reproduced: names, dtypes, shapes, bytes and config."""

from pathlib import Path

import golden_conversions as golden
import pytest
from converted import read_config, read_ranks
from trtkit.checkpoints.weight_only_layout import unpack_weight_only
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions

CASES = golden.cases()
WEIGHT_ONLY = {"int8": "int8_weight_only", "int4": "int4_weight_only"}
# Keys that only some releases write: older loaders refuse unknown mapping keys, so they are left out.
NEWER_MAPPING_KEYS = {
    "attn_cp_size",
    "attn_tp_size",
    "cp_config",
    "enable_attention_dp",
    "enable_lm_head_tp_in_adp",
    "moe_cluster_size",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("inputs")
    return {name: golden.write_input(name, root / name) for name in golden.input_names()}


def options_of(case: golden.Case) -> ConversionOptions:
    options = case.options
    return ConversionOptions(
        dtype=options["dtype"],
        tensor_parallel=options["tp"],
        pipeline_parallel=options["pp"],
        expert_parallel=options.get("moe_ep", 1),
        quantization=WEIGHT_ONLY[options["weight_only"]] if "weight_only" in options else "none",
        kv_cache_dtype=options.get("kv_cache", "auto"),
        use_parallel_embedding=options.get("use_parallel_embedding", False),
        embedding_sharding_dim=options.get("embedding_sharding_dim", 0),
        weight_only_arch=options.get("sm", 80),
    )


@pytest.mark.parametrize("name", golden.input_names())
def test_the_rebuilt_inputs_are_the_recorded_ones(name: str, inputs: dict[str, Path]) -> None:
    weights = open_weights(inputs[name])
    rebuilt = {n: (weights[n].dtype, weights[n].shape, weights.array(n).tobytes()) for n in weights}
    assert golden.facts_of(rebuilt) == golden.input_facts(name)


@pytest.mark.parametrize("case", [c for c in CASES if not c.error and not c.known_bad], ids=lambda c: c.id)
def test_a_recorded_conversion_is_reproduced(case: golden.Case, inputs: dict[str, Path], tmp_path: Path) -> None:
    convert_checkpoint(inputs[case.input], tmp_path, options_of(case))
    ranks = [golden.facts_of(rank) for rank in read_ranks(tmp_path)]
    assert ranks == list(case.ranks)
    config = read_config(tmp_path)
    assert config.pop("producer")["name"] == "trtkit"
    recorded = {k: v for k, v in case.config["mapping"].items() if k not in NEWER_MAPPING_KEYS}
    assert config == case.config | {"mapping": recorded}


@pytest.mark.parametrize("case", [c for c in CASES if c.unprocessed], ids=lambda c: c.id)
def test_unpacked_weight_only_weights_are_the_recorded_row_major_ones(
    case: golden.Case, inputs: dict[str, Path], tmp_path: Path
) -> None:
    import numpy as np

    convert_checkpoint(inputs[case.input], tmp_path, options_of(case))
    bits = 8 if case.options["weight_only"] == "int8" else 4
    for rank, recorded in zip(read_ranks(tmp_path), case.unprocessed, strict=True):
        for name, fact in recorded.items():
            dtype, shape, data = rank[name]
            packed = np.frombuffer(data, dtype=np.int8).reshape(-1, *shape[-2:])
            plain = [unpack_weight_only(matrix, bits, case.options["sm"]) for matrix in packed]
            stored = plain if bits == 8 else [(m[:, 0::2] & 15) | (m[:, 1::2] << 4) for m in plain]
            assert golden.facts_of({name: (dtype, shape, b"".join(m.tobytes() for m in stored))})[name] == fact


@pytest.mark.parametrize("case", [c for c in CASES if c.known_bad], ids=lambda c: c.id)
def test_a_known_bug_of_the_recorded_converter_is_the_only_difference(
    case: golden.Case, inputs: dict[str, Path], tmp_path: Path
) -> None:
    convert_checkpoint(inputs[case.input], tmp_path, options_of(case))
    ranks = [golden.facts_of(rank) for rank in read_ranks(tmp_path)]
    differing = {
        name.split(".", 3)[-1]
        for ours, recorded in zip(ranks, case.ranks, strict=True)
        for name in ours.keys() | recorded.keys()
        if ours.get(name) != recorded.get(name)
    }
    assert differing == {"mlp.fc.weight" if "phi3" in case.id else "attention.qkv.weight"}


@pytest.mark.parametrize("case", [c for c in CASES if c.error], ids=lambda c: c.id)
def test_what_the_recorded_converter_refuses_is_converted(
    case: golden.Case, inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Vocabularies that tp does not divide are padded, key-value heads fewer than tp repeated, tied heads copied."""
    report = convert_checkpoint(inputs[case.input], tmp_path, options_of(case))
    assert len(report.files) == case.options["tp"] * case.options["pp"]
