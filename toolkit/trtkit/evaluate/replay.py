"""What comes after a near-tie: the oracle follows the deployed answer to its end. Knows cases, no deployment.

Two answers that part at a near-tie have nothing in common afterwards, so comparing tokens says nothing about the rest.
But the oracle can be asked, after the deployment's own tokens, what it would have said next.
"""

from collections.abc import Sequence
from dataclasses import replace

from trtkit.evaluate.check import CheckedCase, CheckResult
from trtkit.evaluate.oracle import Oracle
from trtkit.evaluate.parity import Comparison, Referee
from trtkit.evaluate.record import RecordedAnswer
from trtkit.progress import OnProgress, Progress, silent


def follow_near_ties(
    result: CheckResult,
    answers: Sequence[RecordedAnswer],
    oracle: Oracle,
    referee: Referee,
    max_new_tokens: int,
    on_progress: OnProgress = silent,
) -> CheckResult:
    """The result with every near-tie judged to the end of its answer; one pass of the oracle per distinct answer."""
    prompts = {answer.name: answer.prompt_ids for answer in answers}
    # An answer that a stop word ended has no end that could be followed to.
    ties = [case for case in result.cases if case.comparison.verdict == "near-tie" and case.condition != "stop-word"]
    followed: dict[tuple[str, tuple[int, ...]], Comparison] = {}
    for done, case in enumerate(ties):
        on_progress(Progress("replay", done, len(ties), "near-ties"))
        if _key(case) not in followed:
            token_ids = referee.normalized(case.generation.token_ids, max_new_tokens)
            scored = oracle.follow(prompts[case.name], token_ids, referee.header.end_ids)
            followed[_key(case)] = referee.follow(case.comparison, scored)
    on_progress(Progress("replay", len(ties), len(ties), "near-ties"))
    cases = (replace(case, comparison=followed[_key(case)]) if case in ties else case for case in result.cases)
    return CheckResult(tuple(cases))


def _key(case: CheckedCase) -> tuple[str, tuple[int, ...]]:
    return case.name, case.generation.token_ids
