"""Answers past the window of rolling sinks: which requests can be judged, and along which tokens. Asks nobody.

Without drafts, the oracle's recorded answer dropped the same tokens at the same places. With drafts, places depend on
what each step brought; a streamed answer tells that, so the oracle can follow it.
"""

from collections.abc import Sequence

from trtkit.evaluate.oracle.record import RecordedAnswer
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.parity.check import CheckedCase, PlannedRequest


def passes_window(rule: RollingRule | None, answer: RecordedAnswer, max_new_tokens: int) -> bool:
    """Whether tokens are dropped for this answer, at whatever draft length: a step needs no more room than is left."""
    return rule is not None and rule.passes_window(len(answer.prompt_ids) + max_new_tokens)


def is_judgeable(request: PlannedRequest, *, follows: bool) -> bool:
    """Whether an answer past the window can be judged; follows: the oracle is at hand, and answers are streamed."""
    if request.draft_len == 0:
        return True
    return follows and request.draft_len is not None and request.condition not in ("whole", "stop-word")


def needs_following(case: CheckedCase, rolls: bool) -> bool:
    """Whether the oracle has more to say: of a near-tie, and of an answer past the window that drafts moved apart.

    An answer that a stop word ended has no end that could be followed to.
    """
    verdict = case.comparison.verdict
    if case.condition == "stop-word" or verdict == "identical":
        return False
    return verdict == "near-tie" or (rolls and bool(case.draft_len) and case.comparison.prompt_lengths is None)


def steps_of_case(case: CheckedCase, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The deployed tokens by the steps that brought them. An end token that the stream does not show goes with the
    last of them."""
    if not case.draft_len:
        return [(token,) for token in token_ids]
    steps, start = [], 0
    for arrival in case.generation.arrivals:
        steps.append(tuple(token_ids[start : start + arrival.num_tokens]))
        start += arrival.num_tokens
    steps = [step for step in steps if step]
    rest = tuple(token_ids[start:])
    return [*steps[:-1], (*steps[-1], *rest)] if steps else [rest]
