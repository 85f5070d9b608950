"""Runs the parity check: which requests are sent in which order, and what the answers add up to. Knows no protocol."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trtkit.evaluate.endpoint import Endpoint, EndpointRequest, Generation
from trtkit.evaluate.parity import Comparison, Referee, Verdict, worst
from trtkit.evaluate.record import RecordedAnswer
from trtkit.progress import OnProgress, Progress, silent

Pass = Literal["cold", "repeated"]


@dataclass(frozen=True)
class PlannedRequest:
    """One request of the check; the first one for a prompt is cold, later ones find its prefix in the cache.

    draft_len 0 is speculation off, None what the deployment does by itself.
    """

    answer: RecordedAnswer
    draft_len: int | None
    cache: Pass


@dataclass(frozen=True)
class CheckedCase:
    """One request and its verdict."""

    name: str
    group: str
    draft_len: int | None
    cache: Pass
    comparison: Comparison
    generation: Generation


@dataclass(frozen=True)
class CheckResult:
    """All cases of one check."""

    cases: tuple[CheckedCase, ...]

    @property
    def by_prompt(self) -> dict[str, list[CheckedCase]]:
        """The cases of each prompt, in the order they were run."""
        groups: dict[str, list[CheckedCase]] = {}
        for case in self.cases:
            groups.setdefault(case.name, []).append(case)
        return groups

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The gravest verdict of each prompt."""
        return {name: worst(c.comparison.verdict for c in cases) for name, cases in self.by_prompt.items()}

    @property
    def verdict(self) -> Verdict:
        """The gravest verdict of all."""
        return worst(self.verdicts.values())

    def count(self, verdict: Verdict) -> int:
        """Prompts with this verdict."""
        return list(self.verdicts.values()).count(verdict)

    def acceptance(self, cache: Pass) -> float | None:
        """Acceptance rate over the prompts and draft lengths that were speculated on both cold and repeated."""
        kept = [case for case in self._paired() if case.cache == cache]
        drafted = sum(case.generation.num_draft_tokens or 0 for case in kept)
        accepted = sum(case.generation.num_accepted_tokens or 0 for case in kept)
        return accepted / drafted if drafted else None

    def _paired(self) -> list[CheckedCase]:
        drafting = [case for case in self.cases if case.generation.num_draft_tokens]
        cold = {(case.name, case.draft_len) for case in drafting if case.cache == "cold"}
        return [case for case in drafting if (case.name, case.draft_len) in cold]


def plan_requests(answers: Sequence[RecordedAnswer], draft_lens: Sequence[int | None]) -> Iterator[PlannedRequest]:
    """Each prompt with every draft length, then once more with the first of them.

    Which draft length meets the prompt cold changes from prompt to prompt, so that every one of them does.
    """
    for turn, answer in enumerate(answers):
        start = turn % len(draft_lens)
        rotated = [*draft_lens[start:], *draft_lens[:start]]
        yield PlannedRequest(answer, rotated[0], "cold")
        yield from (PlannedRequest(answer, draft_len, "repeated") for draft_len in (*rotated[1:], rotated[0]))


def run_check(
    endpoint: Endpoint,
    requests: Sequence[PlannedRequest],
    referee: Referee,
    max_new_tokens: int,
    on_progress: OnProgress = silent,
) -> CheckResult:
    """Send the requests one after another and judge every answer. Raises ServerError when the endpoint fails."""
    cases = []
    for done, request in enumerate(requests):
        on_progress(Progress("parity", done, len(requests), "requests"))
        cases.append(_check_one(endpoint, request, referee, max_new_tokens))
    on_progress(Progress("parity", len(requests), len(requests), "requests"))
    return CheckResult(tuple(cases))


def _check_one(endpoint: Endpoint, request: PlannedRequest, referee: Referee, max_new_tokens: int) -> CheckedCase:
    answer = request.answer
    got = endpoint.generate(EndpointRequest(answer.text, max_new_tokens, request.draft_len))
    comparison = referee.compare(answer, got, max_new_tokens)
    return CheckedCase(answer.name, answer.group, request.draft_len, request.cache, comparison, got)
