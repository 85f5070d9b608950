"""The bench report as a JSON document: the contract of `trtkit bench --json`. Knows results, writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from trtkit.evaluate.bench.latency import RunStats
from trtkit.evaluate.bench.plan import BenchPlan, BenchRun, Load
from trtkit.evaluate.bench.speedup import WORTHWHILE, recommended_draft_lens, speedups_of

SCHEMA = "trtkit.bench-report/1"
DEFINITIONS = {
    "ttft_ms": "from sending the request to its first tokens, at the client; in an open loop from its planned time",
    "tpot_ms": "(last tokens - first tokens) / tokens after the first response, at the client",
    "e2e_ms": "from sending the request to its last token, at the client; in an open loop from its planned time",
    "tokens_per_s": "answered tokens / time in which the load was on",
    "p50, p90, p95, p99": "percentiles over requests, interpolated linearly between neighbours",
    "..._interval": "holds the population's figure with 95 % confidence: bootstrap over requests; null for too few",
    "acceptance_rate": "accepted / drafted tokens",
    "mean_acceptance_length": "tokens / passes of the target; the recovered or bonus token counts",
    "acceptance_by_position": "share of the drafts of at least so many tokens whose 1st, 2nd, ... token was accepted",
    "mean_reused_blocks": "blocks of the KV cache that a prompt found filled, mean over requests",
    "recommended_max_draft_len": f"highest tokens_per_s by concurrency; 0 below a speed-up of {WORTHWHILE}",
}
_OF_THE_WHOLE_RUN = ("tokens_per_s", "tokens_per_s_interval", "requests_per_s")


@dataclass(frozen=True)
class BenchContext:
    """What was measured, and the command that does it again."""

    deployment: str
    command: str
    dtype: str
    versions: Mapping[str, str]


def bench_document(runs: Sequence[BenchRun], plan: BenchPlan, context: BenchContext) -> dict[str, Any]:
    """Every figure of one bench."""
    speedups = speedups_of(runs)
    recommended = recommended_draft_lens(speedups)
    return {
        "schema": SCHEMA,
        "deployment": context.deployment,
        "command": context.command,
        "dtype": context.dtype,
        "plan": {
            "num_prompts": len(plan.prompts),
            "max_new_tokens": max(prompt.max_new_tokens for prompt in plan.prompts),
            "rounds": plan.rounds,
            "warmup_requests": plan.warmup_requests,
            "cache": "cold" if plan.cold else "warm",
            "seed": plan.seed,
        },
        "skipped": [entry.as_dict() for entry in plan.skipped],
        "runs": [_run(run) for run in runs],
        "speedups": [asdict(speedup) for speedup in speedups],
        "recommended_max_draft_len": {str(concurrency): k for concurrency, k in recommended.items()},
        "definitions": DEFINITIONS,
        "versions": dict(context.versions),
    }


def _run(run: BenchRun) -> dict[str, Any]:
    groups = {name: _group(stats) for name, stats in run.groups.items() if stats is not None}
    return load_fields(run.load) | _stats(run.stats) | {"groups": groups}


def load_fields(load: Load) -> dict[str, Any]:
    """What a run says of its load."""
    return {
        "mode": load.mode,
        "max_draft_len": load.draft_len,
        "loop": "open" if load.concurrency is None else "closed",
        "concurrency": load.concurrency,
        "request_rate": load.rate,
    }


def _stats(stats: RunStats | None) -> dict[str, Any]:
    return asdict(stats) if stats is not None else dict.fromkeys(f.name for f in fields(RunStats))


def _group(stats: RunStats) -> dict[str, Any]:
    """One class of prompts; it was measured together with the others, so it has no throughput of its own."""
    return {key: value for key, value in _stats(stats).items() if key not in _OF_THE_WHOLE_RUN}


def run_name(run: Mapping[str, Any]) -> str:
    """ "target c=1", "K=5 c=4", "K=5 2/s", "target trace" or "transformers"."""
    if run["mode"] == "oracle":
        return "transformers"
    name = "target" if run["mode"] == "target" else f"K={run['max_draft_len']}"
    return f"{name} {pace_of(run)}"


def pace_of(run: Mapping[str, Any]) -> str:
    """ "c=4" for a closed loop, "2/s" for Poisson arrivals, "trace" for the requests' own times."""
    if run["concurrency"] is not None:
        return f"c={run['concurrency']}"
    rate = run.get("request_rate")
    return "trace" if rate is None else f"{rate:g}/s"
