"""The builder grants what EngineSpec asks for: two independent readings of builder.py agree on every request."""

import json
import tempfile
from pathlib import Path
from typing import Any

import contract_trtllm_build
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trtkit.engines.build_args import BuildPaths, build_command
from trtkit.engines.expectation import compare_fields, expected_fields, refuse_mismatches
from trtkit.engines.quant_algo import kv_dtype_of, quantization_of
from trtkit.engines.release import Release, releases
from trtkit.engines.spec import EngineSpec
from trtkit.errors import BuildError

WITH_ENGINES = [release for release in releases() if release.build]
ALGORITHMS = {"none": None, "fp8": "FP8", "fp8_rowwise": "FP8_PER_CHANNEL_PER_TOKEN", "w4a8_awq": "W4A8_AWQ"}
ALGORITHMS |= {"int4_awq": "W4A16_AWQ", "nvfp4": "NVFP4", "int8_weight_only": "W8A16"}


def checkpoint(quantization: str, kv_dtype: str) -> dict[str, Any]:
    kv = None if kv_dtype == "auto" else kv_dtype.upper()
    return {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "hidden_size": 64,
        "max_position_embeddings": 100_000,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": ALGORITHMS[quantization], "kv_cache_quant_algo": kv},
    }


def built_by(release: Release, spec: EngineSpec, document: dict[str, Any], sm: int) -> dict[str, Any]:
    """config.json of the engine that the contract checker makes of the command for `spec`."""
    assert release.build is not None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(document))
        (Path(folder) / "rank0.safetensors").touch()
        command = build_command(spec, release, BuildPaths(folder, folder, f"{folder}/timing"))
        given_options = vars(contract_trtllm_build.parser_of(release.build).parse_args(command[1:]))
        return contract_trtllm_build.build(given_options, release, sm)


specs = st.builds(
    EngineSpec,
    max_batch_size=st.integers(1, 4096),
    max_input_len=st.integers(1, 64),
    max_seq_len=st.one_of(st.integers(64, 300), st.integers(300, 60_000)),
    max_draft_len=st.integers(0, 16),
    block_size=st.sampled_from([16, 32, 64, 128]),
    kv_dtype=st.sampled_from(["auto", "fp8", "int8"]),
    quantization=st.sampled_from(sorted(ALGORITHMS)),
    reuse=st.booleans(),
    speculates=st.booleans(),
    generation_logits=st.booleans(),
    sm=st.sampled_from([80, 86, 89, 90, 120]),
)


@settings(max_examples=300, deadline=None)
@given(spec=specs, release=st.sampled_from(WITH_ENGINES))
def test_the_builder_overrides_nothing_that_is_asked_for(spec: EngineSpec, release: Release) -> None:
    assert spec.sm is not None
    source = checkpoint(spec.quantization, spec.kv_dtype)
    document = built_by(release, spec, source, spec.sm)
    assert compare_fields(expected_fields(spec, release.version, source), document) == []


def test_every_difference_is_listed_with_both_values() -> None:
    spec = EngineSpec(max_batch_size=8, max_input_len=100, max_seq_len=200)
    source = checkpoint("none", "auto")
    document = built_by(WITH_ENGINES[-1], spec, source, 90)
    document["build_config"]["max_batch_size"] = 4
    document["pretrained_config"]["hidden_size"] = 128
    del document["build_config"]["plugin_config"]["streamingllm"]
    found = compare_fields(expected_fields(spec, WITH_ENGINES[-1].version, source), document)
    assert {(m.field.rpartition(".")[2], m.asked, m.built) for m in found} == {
        ("max_batch_size", 8, 4),
        ("hidden_size", 64, 128),
        ("streamingllm", False, "(absent)"),
    }
    with pytest.raises(BuildError, match="max_batch_size: asked 8, built 4"):
        refuse_mismatches(found, where="log")


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("kv_cache_type", "PAGED"),
        ("kv_cache_type", "paged"),
        ("kv_cache_type", "KVCacheType.PAGED"),
        ("speculative_decoding_mode", 2),
        ("speculative_decoding_mode", "DRAFT_TOKENS_EXTERNAL"),
        ("speculative_decoding_mode", "SpeculativeDecodingMode.DRAFT_TOKENS_EXTERNAL"),
    ],
)
def test_releases_may_write_enumerations_as_they_like(field: str, written: Any) -> None:
    spec = EngineSpec(max_batch_size=8, max_input_len=100, max_seq_len=200, max_draft_len=3, speculates=True)
    source = checkpoint("none", "auto")
    document = built_by(WITH_ENGINES[-1], spec, source, 90)
    document["build_config"][field] = written
    assert compare_fields(expected_fields(spec, WITH_ENGINES[-1].version, source), document) == []


def test_the_checker_writes_the_keys_that_0_17_0_post1_wrote() -> None:
    """Names of the fields in the config.json of an engine that this release built."""
    release = next(r for r in WITH_ENGINES if r.version == "0.17.0.post1")
    spec = EngineSpec(max_batch_size=16, max_input_len=1024, max_seq_len=32768)
    document = built_by(release, spec, checkpoint("none", "auto"), 89)
    assert set(document["build_config"]) == BUILD_KEYS_OF_0_17
    assert set(document["build_config"]["plugin_config"]) == PLUGIN_KEYS_OF_0_17


BUILD_KEYS_OF_0_17 = {
    *("max_input_len", "max_seq_len", "opt_batch_size", "max_batch_size", "max_beam_width", "max_num_tokens"),
    *("opt_num_tokens", "max_prompt_embedding_table_size", "kv_cache_type", "gather_context_logits"),
    *("gather_generation_logits", "strongly_typed", "force_num_profiles", "profiling_verbosity"),
    *("enable_debug_output", "max_draft_len", "speculative_decoding_mode", "use_refit", "input_timing_cache"),
    *("output_timing_cache", "lora_config", "auto_parallel_config", "weight_sparsity", "weight_streaming"),
    *("plugin_config", "use_strip_plan", "max_encoder_input_len", "monitor_memory", "use_mrope"),
}
PLUGIN_KEYS_OF_0_17 = {
    *("dtype", "bert_attention_plugin", "gpt_attention_plugin", "gemm_plugin", "explicitly_disable_gemm_plugin"),
    *("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "qserve_gemm_plugin", "identity_plugin", "nccl_plugin"),
    *("lora_plugin", "weight_only_groupwise_quant_matmul_plugin", "weight_only_quant_matmul_plugin"),
    *("smooth_quant_plugins", "smooth_quant_gemm_plugin", "layernorm_quantization_plugin"),
    *("rmsnorm_quantization_plugin", "quantize_per_token_plugin", "quantize_tensor_plugin", "moe_plugin"),
    *("mamba_conv1d_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin", "context_fmha"),
    *("bert_context_fmha_fp32_acc", "paged_kv_cache", "remove_input_padding", "reduce_fusion", "user_buffer"),
    *("tokens_per_block", "use_paged_context_fmha", "use_fp8_context_fmha", "multiple_profiles", "paged_state"),
    *("streamingllm", "manage_weights", "use_fused_mlp", "pp_reduce_scatter"),
}


def test_a_containers_fourth_number_is_no_other_version() -> None:
    expected = {"version": "1.0.3"}
    assert compare_fields(expected, {"version": "1.0.3.2510"}) == []
    assert compare_fields({"version": "0.17.0"}, {"version": "0.17.0.post1"}) != []


def test_formats_are_named_back() -> None:
    assert {name: quantization_of(algorithm) for name, algorithm in ALGORITHMS.items()} == {n: n for n in ALGORITHMS}
    assert quantization_of("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN") == "int8_smoothquant"
    assert quantization_of("SOMETHING_NEW") == "something_new"
    assert (kv_dtype_of(None), kv_dtype_of("FP8"), kv_dtype_of("INT8")) == ("auto", "fp8", "int8")
