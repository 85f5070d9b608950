"""Runs the parity check: which requests are sent in which order, and what the answers add up to. Knows no protocol."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal

from trtkit.errors import InputError
from trtkit.evaluate.endpoints.endpoint import Endpoint, EndpointRequest, Generation
from trtkit.evaluate.endpoints.workers import workers
from trtkit.evaluate.oracle.record import RecordedAnswer
from trtkit.evaluate.parity.stop_word import StopWord, up_to_stop
from trtkit.evaluate.parity.text_answers import Decode, with_token_ids
from trtkit.evaluate.parity.verdicts import Comparison, Referee, Verdict, worst
from trtkit.progress import OnProgress, Progress, silent

Condition = Literal["cold", "repeated", "whole", "after-cancel", "stop-word", "concurrent"]
_CANCEL_AFTER_TOKENS = 2
STOP_SLACK = 2
"""Tokens beyond a stop word that one response may bring along, besides a draft."""


FindStop = Callable[[RecordedAnswer], StopWord | None]


@dataclass(frozen=True)
class PlannedRequest:
    """One request of the check and the condition it is sent under.

    cold: the first one for its prompt. repeated: its prefix is in the cache. whole: not streamed. after-cancel: the
    same request was sent before and given up in mid-stream. stop-word: with a word of the oracle's own answer, where it
    must end. concurrent: together with other prompts. draft_len 0 is speculation off, None what the deployment does by
    itself.
    """

    answer: RecordedAnswer
    draft_len: int | None
    condition: Condition
    stop: StopWord | None = None


@dataclass(frozen=True)
class CheckedCase:
    """One request and its verdict."""

    name: str
    group: str
    draft_len: int | None
    condition: Condition
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

    def acceptance(self, *, cold: bool) -> float | None:
        """Acceptance rate of cold requests, or of repeated ones with the same prompt and draft length."""
        drafting = [case for case in self.cases if case.generation.num_draft_tokens]
        paired = {(case.name, case.draft_len) for case in drafting if case.condition == "cold"}
        kept = [
            case.generation
            for case in drafting
            if (case.name, case.draft_len) in paired and case.condition == ("cold" if cold else "repeated")
        ]
        drafted = sum(generation.num_draft_tokens or 0 for generation in kept)
        accepted = sum(generation.num_accepted_tokens or 0 for generation in kept)
        return accepted / drafted if drafted else None


def plan_requests(
    answers: Sequence[RecordedAnswer],
    draft_lens: Sequence[int | None],
    *,
    served: bool = True,
    find_stop: FindStop | None = None,
) -> Iterator[PlannedRequest]:
    """Each prompt with every draft length, then once more with the first of them when that one drafts.

    Which draft length meets the prompt cold changes from prompt to prompt, so that every one of them does. On a server
    the first prompt of each group is also asked whole, after a cancelled request, and with the stop word that find_stop
    gives it, if it does; at the end all prompts are concurrent.
    """
    last: list[PlannedRequest] = []
    groups: set[str] = set()
    for turn, answer in enumerate(answers):
        start = turn % len(draft_lens)
        first, *others = [*draft_lens[start:], *draft_lens[:start]]
        yield PlannedRequest(answer, first, "cold")
        again = [first] if first != 0 or not others else []
        yield from (PlannedRequest(answer, draft_len, "repeated") for draft_len in (*others, *again))
        if served and answer.group not in groups:
            yield PlannedRequest(answer, first, "whole")
            yield PlannedRequest(answer, first, "after-cancel")
            if find_stop is not None and (stop := find_stop(answer)) is not None:
                yield PlannedRequest(answer, first, "stop-word", stop)
        groups.add(answer.group)
        last.append(PlannedRequest(answer, first, "concurrent"))
    yield from last if served else ()


@dataclass(frozen=True)
class CheckRun:
    """One check of one endpoint: at most max_new_tokens per answer, up to `concurrency` requests at once.

    decode is the oracle's tokenizer, for endpoints that answer with text alone. streams False: a deployment that sends
    every answer whole. is_served False: one that computes in this process, so there is nothing to wait for.
    """

    endpoint: Endpoint
    referee: Referee
    max_new_tokens: int
    concurrency: int = 1
    decode: Decode | None = None
    streams: bool = True
    is_served: bool = True

    def run(self, requests: Sequence[PlannedRequest], on_progress: OnProgress = silent) -> CheckResult:
        """Send the requests and judge every answer, the concurrent ones last.

        Raises ServerError when the endpoint fails.
        """
        alone = [request for request in requests if request.condition != "concurrent"]
        together = [request for request in requests if request.condition == "concurrent"]
        cases = []
        with workers(self.concurrency) as pool:
            one_by_one = (self._wait(pool, request) for request in alone)
            for judged in (one_by_one, pool.map(self._check, together)):
                for case in judged:
                    cases.append(case)
                    on_progress(Progress("parity", len(cases), len(requests), "requests"))
        return CheckResult(tuple(cases))

    def _wait(self, pool: Executor, planned: PlannedRequest) -> CheckedCase:
        return pool.submit(self._check, planned).result() if self.is_served else self._check(planned)

    def _check(self, planned: PlannedRequest) -> CheckedCase:
        answer, draft_len = planned.answer, planned.draft_len
        if planned.condition == "after-cancel":
            given_up = EndpointRequest(
                answer.text, self.max_new_tokens, draft_len, cancel_after_tokens=_CANCEL_AFTER_TOKENS
            )
            self.endpoint.generate(given_up)
        stop = planned.stop
        request = EndpointRequest(
            answer.text,
            self.max_new_tokens,
            draft_len,
            stream=self.streams and planned.condition != "whole",
            stop_words=(stop.word,) if stop is not None else (),
        )
        got = self._with_ids(answer, self.endpoint.generate(request))
        if stop is not None:
            got = up_to_stop(got, stop, STOP_SLACK + (draft_len or 0))
        comparison = self.referee.compare(answer, got, stop.num_tokens if stop is not None else self.max_new_tokens)
        return CheckedCase(answer.name, answer.group, draft_len, planned.condition, comparison, got)

    def _with_ids(self, answer: RecordedAnswer, got: Generation) -> Generation:
        if got.text is None:
            return got
        if self.decode is None:
            raise InputError(
                "the server sends no token ids, and nothing says how to read its text",
                "give the folder of the checkpoint's tokenizer with --tokenizer",
                code="PARITY-TEXT",
            )
        return with_token_ids(answer, got, self.decode, self.max_new_tokens)
