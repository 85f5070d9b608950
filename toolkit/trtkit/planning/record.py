"""Plan to its `--json` record. Knows the contract's keys, computes nothing."""

from dataclasses import asdict
from typing import Any

from trtkit.planning.model_plan import ModelPlan
from trtkit.planning.plan import Plan

SCHEMA = "trtkit.plan/1"
FORMULAS = {
    "kv_bytes_per_token": "2 * layers * KV heads * head_dim * bytes per element",
    "time_per_token_ms": "max(bytes read / bandwidth, operations / rate) / tensor ranks; a lower bound",
    "mean_acceptance_length": "(1 - a^(K+1)) / (1 - a), a = acceptance_rate: the chance that the next draft token is "
    "kept when those before it were",
    "accepted_per_drafted": "(mean_acceptance_length - 1) / K; this is what bench calls acceptance_rate",
    "speedup": "mean_acceptance_length / (K * draft step + verification of K + 1 tokens), in units of a target pass",
    "kv_fractions": "of what is free once the model is loaded, enough in any load order together with "
    "max_tokens_in_paged_kv_cache, of which the runtime takes the smaller",
}


def plan_record(plan: Plan) -> dict[str, Any]:
    """The record; keys of the contract first, more after them."""
    record: dict[str, Any] = {"schema": SCHEMA}
    record |= {role: _model(model, plan) for role, model in plan.models.items()}
    record |= {
        "kv_bytes_per_sequence": plan.kv_bytes_per_sequence,
        "max_sequences": plan.fit.sequences if plan.fit else None,
        "speculation": _gains(plan),
        "recommended_max_draft_len": plan.speculation.recommended if plan.speculation else 0,
        "host_peak_bytes": plan.host.peak_bytes,
        "disk_bytes": plan.host.disk_bytes,
        "limits": _limits(plan),
        "gpu": asdict(plan.given.gpu) if plan.given.gpu else None,
        "context_tokens": plan.given.context_tokens,
        "host_unstreamed_bytes": plan.host.unstreamed_bytes,
        "builder_bytes_per_worker": plan.host.builder_bytes_per_worker,
        "alternatives": [asdict(alternative) for alternative in plan.alternatives],
        "rolling_sinks": asdict(plan.rolling) if plan.rolling else None,
        "formulas": FORMULAS,
    }
    return record | _fit(plan) | _speculation(plan)


def _model(model: ModelPlan, plan: Plan) -> dict[str, Any]:
    gpu, context = plan.given.gpu, plan.given.context_tokens
    return {
        "weight_bytes": sum(model.rank_bytes),
        "weight_bytes_per_rank": max(model.rank_bytes),
        "rank_bytes": list(model.rank_bytes),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_bytes_per_sequence": model.kv_bytes_per_sequence,
        "buffer_bytes": model.buffer_bytes,
        "reference_cache_bytes": model.reference_cache_bytes,
        "time_per_token_ms": model.token_ms(gpu, context) if gpu else None,
    }


def _limits(plan: Plan) -> dict[str, int]:
    """What one request may bring, and what the target's engine is built with because of it."""
    asked, built = plan.config.limits, plan.models["target"].limits
    return {
        "max_input_len": asked.max_input_len,
        "max_output_len": asked.max_output_len,
        "max_seq_len": built.built_max_seq_len,
        "max_num_tokens": built.max_num_tokens,
    }


def _gains(plan: Plan) -> list[dict[str, Any]]:
    gains = plan.speculation.gains if plan.speculation else ()
    return [{**asdict(gain), "accepted_per_drafted": gain.accepted_per_drafted} for gain in gains]


def _fit(plan: Plan) -> dict[str, Any]:
    if plan.fit is None:
        return {"kv_fractions": None, "max_tokens_in_paged_kv_cache": None, "shortfall_bytes": None}
    roles = list(plan.models)
    return {
        "kv_fractions": dict(zip(roles, plan.fit.fractions, strict=False)),
        "max_tokens_in_paged_kv_cache": dict(zip(roles, plan.fit.max_tokens, strict=False)),
        "shortfall_bytes": plan.fit.shortfall_bytes,
    }


def _speculation(plan: Plan) -> dict[str, Any]:
    found = plan.speculation
    return {
        "assumed_acceptance_rate": found.chance if found else None,
        "draft_step_cost": found.draft_cost if found else None,
        "break_even_acceptance_rate": found.break_even if found else None,
        "crossover_batch": found.crossover_batch if found else None,
    }
