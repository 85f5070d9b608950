"""Published arithmetic: weights and time of Llama-3-70B, KV bytes of Llama-2-7B, sessions that fit into 80 GB."""

from pathlib import Path

import pytest
from deployments import LLAMA_70B
from tiny import tiny_config, write_json
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.config.load import parse_config
from trtkit.planning.gpus import find_gpu, parse_gpu_spec
from trtkit.planning.kv_cache import KvPolicy, kv_bytes_per_token
from trtkit.planning.plan import Plan, PlanInput, make_plan
from trtkit.planning.weights import WeightFormat, dense_bytes, model_bytes, num_parameters

LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 16384,
}
SEVEN_B_8K = {
    "name": "sessions",
    "backend": "engine",
    "target": {"checkpoint": "target", "dtype": "float16"},
    "limits": {"max_batch_size": 50, "max_input_len": 7168, "max_output_len": 1024},
}


def spec_of(folder: Path, **shape: object) -> ModelSpec:
    write_json(folder / "config.json", tiny_config("llama", "float16", **shape))
    return read_model_spec(folder)


def sessions_on_80_gb(spec: ModelSpec, **changes: object) -> Plan:
    config = parse_config({**SEVEN_B_8K, **changes}, where="sessions")
    return make_plan(config, {"target": spec}, PlanInput(gpu=find_gpu("a100-80gb"), memory_bytes=None))


def test_llama_3_70b_in_fp16_is_140_gb(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **LLAMA_70B)
    assert num_parameters(spec) == 70_553_706_496
    assert model_bytes(spec, WeightFormat("float16")) == pytest.approx(140e9, rel=0.01)


def test_it_needs_70_ms_per_token_at_2_tb_per_second(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **LLAMA_70B)
    gpu = parse_gpu_spec("sm=80,memory_gb=200,bandwidth_gbps=2000,fp16_tflops=1000")
    seconds = dense_bytes(spec, WeightFormat("float16")) / gpu.bandwidth_bytes_per_s
    assert 1000 * seconds == pytest.approx(70, rel=0.01)


def test_32_layers_of_32_heads_of_128_take_524288_bytes_per_token(tmp_path: Path) -> None:
    per_token = kv_bytes_per_token(spec_of(tmp_path, **LLAMA_7B), "float16", "auto")
    assert per_token == 524_288
    assert KvPolicy("auto", 32).tokens_held(8192) * per_token == 4_294_967_296


def test_50_such_sessions_do_not_fit_into_80_gb(tmp_path: Path) -> None:
    plan = sessions_on_80_gb(spec_of(tmp_path, **LLAMA_7B))
    assert plan.kv_bytes_per_sequence == 4_294_967_296
    assert plan.fit is not None and plan.fit.sequences == 14  # (80 - 13.5 - 1 - 0.6) * 0.95 / 4.29


def test_fp8_doubles_the_sessions_int4_with_its_scales_triples_them_and_a_window_of_1024_gives_eight_times_as_many(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, **LLAMA_7B)
    sinks = {"sink_tokens": 32, "window_tokens": 992}
    found = {(a.kv_dtype, a.keep): a.max_sequences for a in sessions_on_80_gb(spec, attention_sinks=sinks).alternatives}
    assert found["auto", "all"] == 14
    assert found["fp8", "all"] == 28
    assert found["int4", "all"] == 45  # 14 * 16 / (4 + 4 bytes of scales for every 32 channels)
    assert found["auto", "sinks and window"] == 114


def test_a_window_is_what_makes_50_sessions_fit(tmp_path: Path) -> None:
    sinks = {"sink_tokens": 32, "window_tokens": 4064}
    for kv_dtype, fits in (("auto", False), ("fp8", True), ("int4", True)):
        plan = sessions_on_80_gb(spec_of(tmp_path, **LLAMA_7B), kv_cache={"dtype": kv_dtype}, attention_sinks=sinks)
        assert plan.fit is not None and (plan.fit.sequences >= 50) == fits
