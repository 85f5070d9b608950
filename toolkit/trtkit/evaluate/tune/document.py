"""The tune report as a JSON document: the contract of `trtkit tune --json`. Knows results, writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtkit.evaluate.bench.bootstrap import CONFIDENCE
from trtkit.evaluate.bench.latency import summarize_run
from trtkit.evaluate.bench.speedup import WORTHWHILE
from trtkit.evaluate.endpoints.acceptance_figures import acceptance_of
from trtkit.evaluate.tune.halving import OFF, Halving
from trtkit.evaluate.tune.prediction import Predictor
from trtkit.evaluate.tune.sweep import TunedLevel, TunePlan
from trtkit.serving.draft_schedule import DraftSchedule, Step

SCHEMA = "trtkit.tune-report/1"
DEFINITIONS = {
    "concurrency": "answers under way at once, in a closed loop",
    "speedup": "tokens per second over the plain target's, on the same prompts and in the same rungs",
    "speedup_interval": f"holds the speed-up with {CONFIDENCE:.0%} confidence: bootstrap over prompts, paired",
    "rungs": "rounds of the successive halving; each doubles the requests and drops the worse half",
    "recommended": f"the best length of those that went furthest; 0 is off, below a speed-up of {WORTHWHILE}",
    "predicted_speedup": "trtkit plan's formula with the acceptance rate measured here; null without the checkpoints",
    "is_complete": "whether the budget sufficed for every rung; without any there is no recommendation",
}


@dataclass(frozen=True)
class TuneContext:
    """What was tuned, how long it took, and the command that does it again."""

    deployment: str
    command: str
    elapsed_s: float
    predictor: Predictor | None
    versions: Mapping[str, str]


def tune_document(levels: Sequence[TunedLevel], plan: TunePlan, context: TuneContext) -> dict[str, Any]:
    """Every figure of one sweep."""
    schedule = schedule_of(levels)
    return {
        "schema": SCHEMA,
        "deployment": context.deployment,
        "command": context.command,
        "budget_s": plan.budget_s,
        "elapsed_s": round(context.elapsed_s, 3),
        "cache": "cold" if plan.cold else "warm",
        "levels": [_level(level, context.predictor) for level in levels],
        "schedule": [asdict(step) for step in schedule.steps] if schedule is not None else [],
        "skipped": [entry.as_dict() for entry in plan.skipped],
        "definitions": DEFINITIONS,
        "versions": dict(context.versions),
    }


def schedule_of(levels: Sequence[TunedLevel]) -> DraftSchedule | None:
    """Up to each measured load the length found there, so that a load in between takes that of the next larger one.

    None when nothing was measured.
    """
    in_order = sorted(levels, key=lambda level: level.concurrency)
    found = ((level.concurrency, level.halving.recommended) for level in in_order)
    steps = tuple(Step(concurrency, draft_len) for concurrency, draft_len in found if draft_len is not None)
    return DraftSchedule(steps) if steps else None


def _level(level: TunedLevel, predictor: Predictor | None) -> dict[str, Any]:
    halving, concurrency = level.halving, level.concurrency
    arms = [_arm(halving, draft_len, concurrency, predictor) for draft_len in halving.arms]
    return {
        "concurrency": concurrency,
        "recommended": halving.recommended,
        "predicted": _predicted(halving, concurrency, predictor),
        "is_complete": level.is_complete,
        "arms": [arm for arm in arms if arm["num_requests"]],
    }


def _arm(halving: Halving, draft_len: int, concurrency: int, predictor: Predictor | None) -> dict[str, Any]:
    arm = halving.arms[draft_len]
    stats = summarize_run(arm.answers, sum(arm.busy_ns))
    result = halving.result(draft_len) if draft_len != OFF and arm.busy_ns else None
    rate = acceptance_of(arm.answers).rate
    expected = predictor.speedup(rate, draft_len, concurrency) if predictor and rate is not None else None
    return {
        "draft_len": draft_len,
        "num_requests": len(arm.answers),
        "rungs": len(arm.busy_ns),
        "tokens_per_s": arm.tokens_per_s(),
        "ttft_ms_p50": stats.ttft_ms.p50 if stats else None,
        "tpot_ms_p50": stats.tpot_ms.p50 if stats and stats.tpot_ms else None,
        "acceptance_rate": rate,
        "speedup": result.speedup if result else None,
        "speedup_interval": result.speedup_interval if result else None,
        "predicted_speedup": expected,
    }


def _predicted(halving: Halving, concurrency: int, predictor: Predictor | None) -> int | None:
    """What the plan would recommend, from the acceptance of the length that was measured longest."""
    measured = [arm for arm in halving.arms.values() if arm.draft_len and arm.answers]
    if predictor is None or not measured:
        return None
    longest = max(measured, key=lambda arm: len(arm.answers))
    rate = acceptance_of(longest.answers).rate
    lengths = [draft_len for draft_len in halving.arms if draft_len]
    return None if rate is None else predictor.best(rate, longest.draft_len, concurrency, lengths)
