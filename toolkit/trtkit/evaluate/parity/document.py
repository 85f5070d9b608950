"""The parity report as a JSON document: the contract of `trtkit parity check --json`. Knows results, writes nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtkit.evaluate.oracle.record import RecordHeader, SkippedPrompt
from trtkit.evaluate.oracle.tolerance import DEVIATIONS, NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.diagnosis import diagnose
from trtkit.evaluate.parity.verdicts import Divergence

SCHEMA = "trtkit.parity-report/1"
FORMULA = (
    "tolerance = {deviations:g} * state_error * |h| * |w_a - w_b| / sqrt({hidden_size}) + {logit_error:.3g} * |logit|; "
    "state_error = {state_error:.3g} for {dtype}, {num_layers} layers, conditioning {conditioning:.3g}, "
    "cache {kv_error:.3g}, weights {weight_error:.3g}"
)


@dataclass(frozen=True)
class ParityContext:
    """What was compared with what, and the command that does it again."""

    deployment: str
    command: str
    max_new_tokens: int
    header: RecordHeader
    profile: NumericProfile
    shares: Mapping[str, float]
    skipped: Sequence[SkippedPrompt]
    versions: Mapping[str, str]
    past_window: Mapping[str, Any] | None = None


def parity_document(result: CheckResult, context: ParityContext) -> dict[str, Any]:
    """Every figure of one check, verdicts first."""
    verdicts = result.verdicts
    found = diagnose(result, context.max_new_tokens)
    return {
        "schema": SCHEMA,
        "verdict": "different" if found else result.verdict,
        "diagnosis": [asdict(each) for each in found],
        "identical": result.count("identical"),
        "near_tie": result.count("near-tie"),
        "different": result.count("different"),
        "shares": dict(context.shares),
        "num_requests": len(result.cases),
        "deployment": context.deployment,
        "command": context.command,
        "max_new_tokens": context.max_new_tokens,
        "oracle": asdict(context.header) | {"library": "transformers"},
        "tolerance": {**asdict(context.profile), "formula": formula_of(context.profile)},
        "acceptance": {"cold": result.acceptance(cold=True), "repeated": result.acceptance(cold=False)},
        "versions": dict(context.versions),
        "past_window": context.past_window,
        "skipped": [left_out.as_dict() for left_out in context.skipped],
        "prompts": [
            {
                "name": name,
                "group": cases[0].group,
                "verdict": verdicts[name],
                "cases": [_case(case) for case in cases],
            }
            for name, cases in result.by_prompt.items()
        ],
    }


def formula_of(profile: NumericProfile) -> str:
    """How the tolerance was derived, with this deployment's numbers."""
    derived = {"state_error": profile.state_error, "logit_error": 2 * profile.logit_error}
    return FORMULA.format(deviations=DEVIATIONS, **derived, **asdict(profile))


def _case(case: CheckedCase) -> dict[str, Any]:
    got = case.generation
    return {
        "draft_len": case.draft_len,
        "condition": case.condition,
        "compared": "ids" if got.text is None else "text",
        "verdict": case.comparison.verdict,
        "num_tokens": len(got.token_ids),
        "num_agreeing_tokens": case.comparison.num_agreeing_tokens,
        "divergence": _divergence(case.comparison.divergence),
        "num_near_ties": case.comparison.num_near_ties,
        "prompt_lengths": case.comparison.prompt_lengths,
        "num_draft_tokens": got.num_draft_tokens,
        "num_accepted_tokens": got.num_accepted_tokens,
        "num_prompt_tokens": got.num_prompt_tokens,
        "num_reused_blocks": got.num_reused_blocks,
        "token_ids": list(got.token_ids),
    }


def _divergence(divergence: Divergence | None) -> dict[str, Any] | None:
    """JSON has no infinity, so a margin that nothing bounds is null."""
    if divergence is None:
        return None
    return {**asdict(divergence), "margin": None if math.isinf(divergence.margin) else divergence.margin}
