"""What comes after a near-tie: the oracle follows the deployed answer to its end. Knows cases, no deployment.

Two answers that part at a near-tie have nothing in common afterwards, so comparing tokens says nothing about the rest.
But the oracle can be asked, after the deployment's own tokens, what it would have said next.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import RecordedAnswer
from trtkit.evaluate.oracle.rolling import stretches_of
from trtkit.evaluate.oracle.scored_token import ScoredToken
from trtkit.evaluate.parity.check import CheckedCase, CheckResult
from trtkit.evaluate.parity.past_window import needs_following, passes_window, steps_of_case
from trtkit.evaluate.parity.verdicts import Comparison, Referee
from trtkit.progress import OnProgress, Progress, silent


def follow_near_ties(
    result: CheckResult,
    answers: Sequence[RecordedAnswer],
    oracle: Oracle,
    referee: Referee,
    max_new_tokens: int,
    on_progress: OnProgress = silent,
) -> CheckResult:
    """The result with every case that needs it judged to the end of its answer; one pass of the oracle per distinct
    answer, or more past a rolling window: one between two evictions."""
    known = {answer.name: answer for answer in answers}
    rule = referee.header.rolling
    ties = [c for c in result.cases if needs_following(c, passes_window(rule, known[c.name], max_new_tokens))]
    followed: dict[tuple[object, ...], Comparison] = {}
    for done, case in enumerate(ties):
        on_progress(Progress("replay", done, len(ties), "answers"))
        if _key(case) not in followed:
            scored = _scored(case, known[case.name].prompt_ids, oracle, referee, max_new_tokens)
            followed[_key(case)] = referee.follow(case.comparison, scored)
    on_progress(Progress("replay", len(ties), len(ties), "answers"))
    cases = (replace(case, comparison=followed[_key(case)]) if case in ties else case for case in result.cases)
    return CheckResult(tuple(cases))


def _scored(
    case: CheckedCase, prompt_ids: tuple[int, ...], oracle: Oracle, referee: Referee, max_new_tokens: int
) -> list[ScoredToken]:
    """Up to the first id that is no token of the oracle's: no prefix that ends with it can be asked for."""
    token_ids = referee.normalized(case.generation.token_ids, max_new_tokens)
    outside = next((place for place, token in enumerate(token_ids) if not 0 <= token < oracle.vocab_size), None)
    if outside is None:
        return _scored_known(case, token_ids, prompt_ids, oracle, referee, max_new_tokens)
    known = [*token_ids[:outside], 0]
    *before, last = _scored_known(case, known, prompt_ids, oracle, referee, max_new_tokens)
    return [*before, replace(last, token=token_ids[outside], gap=math.inf)]


def _scored_known(
    case: CheckedCase,
    token_ids: list[int],
    prompt_ids: tuple[int, ...],
    oracle: Oracle,
    referee: Referee,
    max_new_tokens: int,
) -> list[ScoredToken]:
    header = referee.header
    if header.rolling is None:
        return oracle.follow(prompt_ids, token_ids, header.end_ids)
    steps = steps_of_case(case, token_ids)
    stretches = stretches_of(header.rolling, prompt_ids, steps, case.draft_len or 0, max_new_tokens)
    return [token for s in stretches for token in oracle.follow(s.context_ids, s.token_ids, header.end_ids)]


def _key(case: CheckedCase) -> tuple[object, ...]:
    generation = case.generation
    sizes = tuple(arrival.num_tokens for arrival in generation.arrivals) if case.draft_len else ()
    return case.name, case.draft_len, generation.token_ids, sizes, case.comparison.verdict
