"""The bench report as a JSON document: the contract of `trtkit bench --json`. Knows results, writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from trtkit.evaluate.bench import BenchPlan, BenchRun
from trtkit.evaluate.latency import RunStats
from trtkit.evaluate.speedup import WORTHWHILE, recommended_draft_lens, speedups_of

SCHEMA = "trtkit.bench-report/1"
DEFINITIONS = {
    "ttft_ms": "from sending the request to its first tokens, at the client",
    "tpot_ms": "(last tokens - first tokens) / tokens after the first response, at the client",
    "e2e_ms": "from sending the request to its last token, at the client",
    "tokens_per_s": "answered tokens / time in which the load was on",
    "acceptance_rate": "accepted / drafted tokens",
    "mean_acceptance_length": "tokens / passes of the target; the recovered or bonus token counts",
    "recommended_max_draft_len": f"highest tokens_per_s by concurrency; 0 below a speed-up of {WORTHWHILE}",
}


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
            "num_prompts": len(plan.texts),
            "max_new_tokens": plan.max_new_tokens,
            "rounds": plan.rounds,
            "warmup_requests": plan.warmup_requests,
            "cache": "cold" if plan.cold else "warm",
        },
        "runs": [_run(run) for run in runs],
        "speedups": [asdict(speedup) for speedup in speedups],
        "recommended_max_draft_len": {str(concurrency): k for concurrency, k in recommended.items()},
        "definitions": DEFINITIONS,
        "versions": dict(context.versions),
    }


def _run(run: BenchRun) -> dict[str, Any]:
    load = {"mode": run.load.mode, "max_draft_len": run.load.draft_len, "concurrency": run.load.concurrency}
    return load | (asdict(run.stats) if run.stats is not None else dict.fromkeys(f.name for f in fields(RunStats)))


def run_name(run: Mapping[str, Any]) -> str:
    """ "target c=1", "K=5 c=4" or "transformers"."""
    if run["mode"] == "oracle":
        return "transformers"
    name = "target" if run["mode"] == "target" else f"K={run['max_draft_len']}"
    return f"{name} c={run['concurrency']}"
