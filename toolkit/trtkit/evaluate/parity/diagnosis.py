"""What a pattern of differences points at, by name. Pure: checked cases in, likely faults out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.draft_accounting import draft_length_faults

_MOST = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """A fault that explains what was seen: its name, and what was seen."""

    fault: str
    evidence: str


def diagnose(result: CheckResult, max_new_tokens: int) -> list[Diagnosis]:
    """The likely faults, likeliest first; empty when nothing is different."""
    found = [Diagnosis("draft-length", text) for text in draft_length_faults(result.cases, max_new_tokens)]
    wrong = [case for case in result.cases if case.comparison.verdict == "different"]
    if not wrong:
        return found
    lengths = next((case.comparison.prompt_lengths for case in wrong if case.comparison.prompt_lengths), None)
    if lengths is not None:
        what = "a token more, as by a second BOS" if lengths[1] == lengths[0] + 1 else "another number of tokens"
        return [*found, Diagnosis("tokenizer", f"the deployment makes {what} of the same text: {lengths}")]
    for fault, evidence, holds in _PATTERNS:
        if holds(result.cases, wrong):
            return [*found, Diagnosis(fault, evidence)]
    return [*found, Diagnosis("unknown", "no pattern: some requests differ and others like them do not")]


Pattern = Callable[[Sequence[CheckedCase], Sequence[CheckedCase]], bool]


def _only(condition: str) -> Pattern:
    return lambda _, wrong: all(case.condition == condition for case in wrong)


def _streamed_only(cases: Sequence[CheckedCase], wrong: Sequence[CheckedCase]) -> bool:
    """Whole answers are right where the same prompt streamed is wrong."""
    conditions = {case.condition for case in wrong}
    whole = {case.name for case in cases if case.condition == "whole"}
    return "cold" in conditions and "whole" not in conditions and any(case.name in whole for case in wrong)


def _everywhere(cases: Sequence[CheckedCase], wrong: Sequence[CheckedCase]) -> bool:
    """Most prompts are wrong at their first plain request already."""
    plain = [case for case in cases if case.condition == "cold" and not case.draft_len]
    return bool(plain) and sum(case in wrong for case in plain) > _MOST * len(plain)


_PATTERNS: tuple[tuple[str, str, Pattern], ...] = (
    ("stop-word", "answers go on past a stop word, all others are right", _only("stop-word")),
    ("cancellation", "only requests after a cancelled one differ", _only("after-cancel")),
    ("batching", "only requests that run together with others differ", _only("concurrent")),
    ("streaming", "the same prompts are right when they are not streamed", _streamed_only),
    (
        "model",
        "most prompts differ without speculation and cache: weights, configuration or numerics; "
        "trtkit parity checkpoint says in which layer",
        _everywhere,
    ),
    ("speculation", "only requests with drafts differ", lambda _, wrong: all(case.draft_len for case in wrong)),
    (
        "prefix-cache",
        "prompts differ when their prefix is in the cache, and not when they are new",
        lambda _, wrong: "cold" not in {case.condition for case in wrong},
    ),
)
