"""A plan of the pair 70B and 1B: the contract's keys, the shared GPU, speculation, rolling sinks, host memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from deployments import LLAMA_1B, LLAMA_70B, yaml_document
from known_models import fill_cache
from rich.console import Console
from tiny import tiny_config, write_json
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.cli.plan import render
from trtkit.config.load import load_config, parse_config
from trtkit.config.presets import presets
from trtkit.planning.gpus import find_gpu
from trtkit.planning.plan import Plan, PlanInput, make_plan, round_costs
from trtkit.planning.record import plan_record
from trtkit.planning.request import PlanRequest, plan_config

GB = 10**9
FP8 = {"kv_cache.dtype": "fp8", "target.quantization": "fp8", "draft.quantization": "fp8"}
NO_GPU = PlanInput(gpu=None, memory_bytes=None)
CONTRACT = {
    "target",
    "draft",
    "kv_bytes_per_sequence",
    "max_sequences",
    "speculation",
    "recommended_max_draft_len",
    "host_peak_bytes",
    "disk_bytes",
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    found = {}
    for role, shape in (("target", LLAMA_70B), ("draft", LLAMA_1B)):
        folder = tmp_path_factory.mktemp(role)
        write_json(folder / "config.json", tiny_config("llama", "bfloat16", **shape))
        found[role] = read_model_spec(folder)
    return found


def plan_of(specs: dict[str, ModelSpec], gpu: str | None = "h100", given: Any = None, **changes: Any) -> Plan:
    config = parse_config(yaml_document({key.replace("__", "."): v for key, v in changes.items()}), where="pair.yaml")
    return make_plan(config, specs, given or PlanInput(gpu=find_gpu(gpu) if gpu else None, memory_bytes=None))


def test_the_record_keeps_the_contract(specs: dict[str, ModelSpec]) -> None:
    record = plan_record(plan_of(specs, target__tensor_parallel=4))
    assert set(record) >= CONTRACT
    assert record["target"].keys() >= {
        "weight_bytes",
        "weight_bytes_per_rank",
        "kv_bytes_per_token",
        "time_per_token_ms",
    }
    assert record["speculation"][0].keys() >= {"max_draft_len", "acceptance_rate", "speedup"}
    json.dumps(record)


def test_tensor_parallelism_divides_the_weights(specs: dict[str, ModelSpec]) -> None:
    record = plan_record(plan_of(specs, target__tensor_parallel=4))
    assert record["target"]["weight_bytes_per_rank"] == pytest.approx(record["target"]["weight_bytes"] / 4, rel=0.05)


def test_70b_in_16_bits_on_one_80_gb_gpu_has_a_shortfall(specs: dict[str, ModelSpec]) -> None:
    plan = plan_of(specs, gpu__count=1)
    assert plan.fit is not None and plan.fit.sequences == 0
    assert plan.fit.shortfall_bytes > 60 * GB


def test_two_models_on_one_gpu_get_solved_fractions(specs: dict[str, ModelSpec]) -> None:
    changes = {"gpu__count": 1, "target__quantization": "int4_awq", "kv_cache__dtype": "auto"}
    plan = plan_of(specs, **changes)
    assert plan.shared and plan.fit is not None and plan.fit.sequences > 0
    assert len(plan.fit.fractions) == 2
    assert plan_record(plan)["kv_fractions"].keys() == {"target", "draft"}


def test_models_with_gpus_of_their_own_do_not_share(specs: dict[str, ModelSpec]) -> None:
    assert not plan_of(specs, target__tensor_parallel=2).shared
    assert plan_of(specs, target__tensor_parallel=2, draft__tensor_parallel=2, backend="llmapi").shared


def test_a_draft_with_a_gpu_of_its_own_must_fit_there(specs: dict[str, ModelSpec]) -> None:
    """The roles of the pair exchanged: the small model would fit 80 GB many times over, the large one never."""
    exchanged = {"target": specs["draft"], "draft": specs["target"]}
    plan = plan_of(exchanged, gpu__count=2)
    assert not plan.shared
    assert plan.fit is not None and plan.fit.sequences == 0
    assert plan.fit.shortfall_bytes == pytest.approx(61 * GB, rel=0.03), "95 % of 80 - 1 - 141 - buffers, and KV"


def test_of_models_apart_the_tighter_one_decides(specs: dict[str, ModelSpec]) -> None:
    plan = plan_of(specs, target__tensor_parallel=4, gpu__count=5)
    assert plan.fit is not None and not plan.shared
    target, draft = plan.fit.fractions
    assert draft < 0.3 < 0.9 < target < 0.95, "the draft's own GPU would hold more of them"
    assert set(plan_record(plan)["kv_fractions"]) == {"target", "draft"}


def test_a_mixture_reads_more_experts_the_more_tokens_a_pass_has(tmp_path: Path) -> None:
    """Mixtral-8x7B in bfloat16, by hand: 8 experts of 176,160,768 weights in each of 32 layers; a token takes two."""
    name = "mistralai/Mixtral-8x7B-Instruct-v0.1"
    spec = read_model_spec(fill_cache(tmp_path) / "checkpoints" / name.replace("/", "--"))
    cost = plan_of({"target": spec, "draft": spec}).models["target"].cost
    experts = 2 * 8 * 176_160_768 * 32
    attention = 2 * (4096 * (4096 + 2 * 1024) + 4096 * 4096)
    dense = 32 * (attention + 4 * 8 * 4096 + 2 * 2 * 4096) + 2 * 4096 + 2 * 32000 * 4096
    assert cost.weight_bytes() == pytest.approx(dense + experts / 4, rel=1e-9)
    assert cost.weight_bytes(5) == pytest.approx(dense + experts * (1 - 0.75**5), rel=1e-9)
    costs = round_costs(
        *(plan_of({"target": spec, "draft": spec}).models[role] for role in ("target", "draft")), NO_GPU
    )
    assert costs.verify(4) == pytest.approx(cost.weight_bytes(5) / cost.weight_bytes()) and costs.verify(4) > 2.5


def test_a_kv_head_that_several_ranks_hold_is_read_by_each(specs: dict[str, ModelSpec]) -> None:
    """8 KV heads on 16 ranks: each rank reads a whole head of every token, as on 8 ranks."""
    read = {
        ranks: plan_of(specs, target__tensor_parallel=ranks).models["target"].cost.kv_bytes_per_token / ranks
        for ranks in (4, 8, 16)
    }
    assert read[16] == read[8] == read[4] / 2


def test_a_small_draft_pays_and_the_break_even_lies_below_one_half(specs: dict[str, ModelSpec]) -> None:
    speculation = plan_of(specs, target__tensor_parallel=4).speculation
    assert speculation is not None
    assert speculation.recommended > 0
    assert speculation.break_even is not None and speculation.break_even < 0.5


def test_with_enough_sequences_in_flight_drafting_stops_paying(specs: dict[str, ModelSpec]) -> None:
    speculation = plan_of(specs, target__tensor_parallel=4).speculation
    assert speculation is not None and speculation.crossover_batch is not None
    assert 16 < speculation.crossover_batch < 256


def test_a_measured_acceptance_of_zero_switches_drafting_off(specs: dict[str, ModelSpec]) -> None:
    given = PlanInput(gpu=find_gpu("h100"), memory_bytes=None, acceptance_rate=0.0)
    record = plan_record(plan_of(specs, given=given))
    assert record["recommended_max_draft_len"] == 0


def test_rolling_sinks_cost_a_prefill_of_the_kept_window_per_eviction(specs: dict[str, ModelSpec]) -> None:
    plan = plan_of(specs, target__tensor_parallel=4, attention_sinks={"sink_tokens": 4, "window_tokens": 1024})
    assert plan.rolling is not None and plan.rolling.prefill_ms is not None
    assert (plan.rolling.evict_tokens, plan.rolling.kept_tokens) == (256, 772)
    # 772 tokens * 2 * 69.5e9 operations on 4 GPUs of 989 TFLOP/s.
    assert plan.rolling.prefill_ms == pytest.approx(772 * 2 * 69.5e9 / (4 * 989e12) * 1000, rel=0.02)
    assert plan.rolling.ms_per_token == plan.rolling.prefill_ms / 256


def test_converting_70b_streams_where_loading_it_would_not_fit_into_48_gib(specs: dict[str, ModelSpec]) -> None:
    host = plan_of(specs).host
    assert host.peak_bytes < 1 << 30
    assert host.unstreamed_bytes > 48 << 30


def test_without_a_gpu_memory_is_the_hosts_and_no_time_is_claimed(specs: dict[str, ModelSpec]) -> None:
    record = plan_record(plan_of(specs, None, PlanInput(gpu=None, memory_bytes=512 * GB)))
    assert record["target"]["time_per_token_ms"] is None
    assert record["max_sequences"] > 0
    assert record["draft_step_cost"] == pytest.approx(1.5 / 70, rel=0.2)


@pytest.mark.parametrize(("backend", "rows"), [("reference", 8192), ("engine", 128256)])
def test_a_draft_that_computes_a_part_of_its_logits_reads_that_part(
    backend: str, rows: int, specs: dict[str, ModelSpec]
) -> None:
    """trtkit's own engine reads draft_vocabulary.json; TensorRT-LLM computes all logits."""
    given = PlanInput(gpu=None, memory_bytes=512 * GB, head_rows={"draft": 8192})
    partial = plan_of(specs, given=given, backend=backend).models["draft"].cost.weight_bytes()
    whole = plan_of(specs, given=PlanInput(gpu=None, memory_bytes=512 * GB), backend=backend).models["draft"]
    assert whole.cost.weight_bytes() - partial == (128256 - rows) * whole.spec.hidden_size * 2


def test_what_the_llm_api_reads_as_it_is_takes_no_host_memory_and_no_disk(tmp_path: Path) -> None:
    """The target is stored in FP8; the draft is unquantised and served so, or made FP8 by the build."""
    fill_cache(tmp_path)
    config = load_config(presets()["llama70b_spec_llmapi"])
    host = plan_config(config, PlanRequest(tmp_path)).host
    assert (host.peak_bytes, host.disk_bytes) == (0, 0)
    made = load_config(presets()["llama70b_spec_llmapi"], ["draft.quantization=fp8"])
    assert 1.2e9 < plan_config(made, PlanRequest(tmp_path)).host.disk_bytes < 1.6e9


@pytest.mark.parametrize("quantization", ["int4_awq", "int8_smoothquant"])
def test_what_modelopt_quantises_is_held_whole(quantization: str, specs: dict[str, ModelSpec]) -> None:
    """The target's 141 GB of bfloat16 and what is made of them."""
    host = plan_of(specs, target__quantization=quantization).host
    assert host.peak_bytes == host.unstreamed_bytes > 141e9


@pytest.mark.parametrize(
    "changes", [{"target__quantization": "fp8"}, {"kv_cache": {"dtype": "int8"}, "draft": ..., "speculation": ...}]
)
def test_measuring_scales_holds_two_layers(changes: dict[str, Any], specs: dict[str, ModelSpec]) -> None:
    """A layer of 70B: 8192 * (8192 + 2 * 1024 + 8192 + 3 * 28672) weights, and two norms, in bfloat16."""
    layer = 2 * (8192 * (2 * 8192 + 2 * 1024 + 3 * 28672) + 2 * 8192)
    assert layer == pytest.approx(1.71e9, rel=0.01)
    assert plan_of(specs, **changes).host.peak_bytes == (1 << 30) + 2 * layer


def test_the_limits_that_follow_from_the_yaml_are_stated(specs: dict[str, ModelSpec]) -> None:
    """2048 + 1024 tokens and 5 of a draft; a step may hold 8192 tokens, the builder's default."""
    assert plan_record(plan_of(specs))["limits"] == {
        "max_input_len": 2048,
        "max_output_len": 1024,
        "max_seq_len": 3077,
        "max_num_tokens": 8192,
    }
    assert "prompt 2048 + answer 1024 = 3072 tokens (max_seq_len 3077, max_num_tokens 8192)" in shown(plan_of(specs))


def test_the_table_says_who_holds_the_whole_model(specs: dict[str, ModelSpec]) -> None:
    assert "nvidia-modelopt holds the whole model" in shown(plan_of(specs, target__quantization="int4_awq"))
    assert "419.43 MB streamed; 288.95 GB if not" in shown(plan_of(specs, target__tensor_parallel=4))


def shown(plan: Plan) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(plan))
    return capture.get()
