"""Which requests a check sends, and what its cases add up to."""

import threading
from collections.abc import Iterable, Sequence

from parity_samples import answer, header, step
from trtkit.evaluate.endpoints.endpoint import EndpointRequest, Generation
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult, CheckRun, PlannedRequest, plan_requests
from trtkit.evaluate.parity.verdicts import Comparison, Referee, Verdict

A = answer("a", step(10, 9, 5.0), step(11, 9, 5.0))
B = answer("b", step(12, 9, 5.0), step(13, 9, 5.0))
REFEREE = Referee(header(), NumericProfile("bfloat16", 2, 16))


def plan(draft_lens: Sequence[int | None], **kind: bool) -> list[tuple[str, int | None, str]]:
    return [(r.answer.name, r.draft_len, r.condition) for r in plan_requests([A, B], draft_lens, **kind)]


def test_every_draft_length_meets_some_prompt_cold() -> None:
    assert plan((0, 5), served=False) == [
        ("a", 0, "cold"),
        ("a", 5, "repeated"),
        ("b", 5, "cold"),
        ("b", 0, "repeated"),
        ("b", 5, "repeated"),  # acceptance may depend on what was reused
    ]


def test_a_server_is_also_asked_whole_after_a_cancelled_request_and_by_several_at_once() -> None:
    assert plan((0, 5)) == [
        ("a", 0, "cold"),
        ("a", 5, "repeated"),
        ("a", 0, "whole"),
        ("a", 0, "after-cancel"),
        ("b", 5, "cold"),
        ("b", 0, "repeated"),
        ("b", 5, "repeated"),
        ("a", 0, "concurrent"),
        ("b", 5, "concurrent"),
    ]


def test_without_a_draft_each_prompt_is_asked_cold_and_again() -> None:
    assert plan((0,), served=False) == [
        ("a", 0, "cold"),
        ("a", 0, "repeated"),
        ("b", 0, "cold"),
        ("b", 0, "repeated"),
    ]


class Parrot:
    """Answers from a table by text; a stand-in for a served deployment, kept by the rule it breaks."""

    def __init__(self, wrong_when_drafting: bool = False) -> None:
        self.asked: list[EndpointRequest] = []
        self._wrong = wrong_when_drafting

    def generate(self, request: EndpointRequest) -> Generation:
        self.asked.append(request)
        token_ids = A.token_ids if request.text == A.text else B.token_ids
        if self._wrong and request.draft_len:
            token_ids = (token_ids[0], 31)
        return Generation(token_ids, 0, ())


def check(parrot: Parrot, requests: Iterable[PlannedRequest]) -> CheckResult:
    return CheckRun(parrot, REFEREE, 2, concurrency=2).run(list(requests))


def test_a_check_sends_the_texts_and_lengths_of_the_plan() -> None:
    parrot = Parrot()
    result = check(parrot, plan_requests([A], (0, 5), served=False))
    assert [(r.text, r.max_new_tokens, r.draft_len) for r in parrot.asked] == [(A.text, 2, k) for k in (0, 5)]
    assert (result.verdict, result.count("identical")) == ("identical", 1)


def test_a_cancelled_request_is_sent_before_the_one_that_is_judged() -> None:
    parrot = Parrot()
    result = check(parrot, [PlannedRequest(A, 0, "after-cancel"), PlannedRequest(A, 0, "whole")])
    assert [(r.cancel_after_tokens, r.stream) for r in parrot.asked] == [(2, True), (None, True), (None, False)]
    assert len(result.cases) == 2


def test_concurrent_requests_are_under_way_together() -> None:
    together = threading.Barrier(2, timeout=60)

    class Meeting(Parrot):
        def generate(self, request: EndpointRequest) -> Generation:
            together.wait()  # raises BrokenBarrierError unless two requests meet here
            return super().generate(request)

    result = check(Meeting(), [PlannedRequest(A, 0, "concurrent"), PlannedRequest(B, 0, "concurrent")])
    assert result.verdicts == {"a": "identical", "b": "identical"}


def test_a_prompt_that_differs_only_when_drafting_is_different() -> None:
    result = check(Parrot(wrong_when_drafting=True), plan_requests([A, B], (0, 5), served=False))
    assert result.verdicts == {"a": "different", "b": "different"}
    assert [case.comparison.verdict for case in result.by_prompt["a"]] == ["identical", "different"]


def case(
    name: str, draft_len: int, condition: str, verdict: Verdict = "identical", drafted: int = 0, accepted: int = 0
):  # type: ignore[no-untyped-def]
    generation = Generation((), 0, (), num_draft_tokens=drafted, num_accepted_tokens=accepted)
    return CheckedCase(name, "short", draft_len, condition, Comparison(verdict, 0), generation)  # type: ignore[arg-type]


def test_the_worst_case_of_a_prompt_is_its_verdict() -> None:
    result = CheckResult((case("a", 0, "cold"), case("a", 5, "repeated", "near-tie"), case("b", 0, "cold")))
    assert (result.count("identical"), result.count("near-tie"), result.count("different")) == (1, 1, 0)
    assert result.verdict == "near-tie"


def test_acceptance_is_compared_on_prompts_that_were_drafted_cold_and_repeated() -> None:
    cases = (
        case("a", 5, "cold", drafted=10, accepted=5),
        case("a", 5, "repeated", drafted=10, accepted=1),
        case("b", 5, "repeated", drafted=10, accepted=10),  # never cold: says nothing about reuse
    )
    assert CheckResult(cases).acceptance(cold=True) == 0.5
    assert CheckResult(cases).acceptance(cold=False) == 0.1


def test_without_drafts_there_is_no_acceptance() -> None:
    assert CheckResult((case("a", 0, "cold"),)).acceptance(cold=True) is None
