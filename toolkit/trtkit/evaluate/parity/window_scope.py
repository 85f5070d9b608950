"""What of a check lies past the window of rolling sinks, and what of that is judged. Knows requests, asks nobody."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.record_choice import Expectation
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.parity.check import CheckResult, PlannedRequest
from trtkit.evaluate.parity.past_window import is_judgeable, needs_following, passes_window


@dataclass
class WindowScope:
    """The prompts whose answers pass the window, by name; the prompts left out since nothing here drops tokens; and how
    many requests were left out since nobody can say what the deployment had dropped."""

    rule: RollingRule | None
    names: frozenset[str]
    follows: bool
    skipped: list[SkippedPrompt] = field(default_factory=list)
    num_left_out: int = 0

    @classmethod
    def of(cls, expected: Expectation, *, in_process: bool, follows: bool) -> Self:
        """follows: the oracle is at hand to follow streamed answers. in_process: no orchestrator takes part."""
        rule = expected.record.header.rolling
        past = [answer for answer in expected.answers if passes_window(rule, answer, expected.max_new_tokens)]
        reason = "passes the window, and without a server nothing drops tokens"
        skipped = [SkippedPrompt(answer.name, answer.prompt_key, reason) for answer in past if in_process]
        return cls(rule, frozenset(answer.name for answer in past), follows, skipped)

    def judged(self, planned: Iterable[PlannedRequest]) -> list[PlannedRequest]:
        """The requests to send, the others counted."""
        dropped = {left_out.name for left_out in self.skipped}
        kept = []
        for request in planned:
            if request.answer.name in dropped:
                continue
            if request.answer.name in self.names and not is_judgeable(request, follows=self.follows):
                self.num_left_out += 1
                continue
            kept.append(request)
        return kept

    def needs_following(self, result: CheckResult) -> bool:
        """Whether the oracle has to be asked again."""
        return any(needs_following(case, case.name in self.names) for case in result.cases)

    def document(self) -> dict[str, Any] | None:
        """For the report; None without rolling sinks."""
        if self.rule is None:
            return None
        judged = sorted(self.names - {left_out.name for left_out in self.skipped})
        return {**asdict(self.rule), "prompts": judged, "num_requests_left_out": self.num_left_out}
