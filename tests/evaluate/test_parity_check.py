"""Which requests a check sends, and what its cases add up to."""

from collections.abc import Sequence

from parity_samples import answer, header, step
from trtkit.evaluate.check import CheckedCase, CheckResult, plan_requests, run_check
from trtkit.evaluate.endpoint import EndpointRequest, Generation
from trtkit.evaluate.parity import Comparison, Referee, Verdict
from trtkit.evaluate.tolerance import NumericProfile

A = answer("a", step(10, 9, 5.0), step(11, 9, 5.0))
B = answer("b", step(12, 9, 5.0), step(13, 9, 5.0))
REFEREE = Referee(header(), NumericProfile("bfloat16", 2, 16))


def plan(draft_lens: Sequence[int]) -> list[tuple[str, int, str]]:
    return [(r.answer.name, r.draft_len, r.cache) for r in plan_requests([A, B], draft_lens)]


def test_every_draft_length_meets_some_prompt_cold() -> None:
    assert plan((0, 5)) == [
        ("a", 0, "cold"),
        ("a", 5, "repeated"),
        ("a", 0, "repeated"),
        ("b", 5, "cold"),
        ("b", 0, "repeated"),
        ("b", 5, "repeated"),
    ]


def test_without_a_draft_each_prompt_is_asked_cold_and_again() -> None:
    assert plan((0,)) == [("a", 0, "cold"), ("a", 0, "repeated"), ("b", 0, "cold"), ("b", 0, "repeated")]


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


def test_a_check_sends_the_texts_and_lengths_of_the_plan() -> None:
    parrot = Parrot()
    result = run_check(parrot, list(plan_requests([A], (0, 5))), REFEREE, 2)
    assert [(r.text, r.max_new_tokens, r.draft_len) for r in parrot.asked] == [(A.text, 2, k) for k in (0, 5, 0)]
    assert (result.verdict, result.count("identical")) == ("identical", 1)


def test_a_prompt_that_differs_only_when_drafting_is_different() -> None:
    result = run_check(Parrot(wrong_when_drafting=True), list(plan_requests([A, B], (0, 5))), REFEREE, 2)
    assert result.verdicts == {"a": "different", "b": "different"}
    assert [case.comparison.verdict for case in result.by_prompt["a"]] == ["identical", "different", "identical"]


def case(name: str, draft_len: int, cache: str, verdict: Verdict = "identical", drafted: int = 0, accepted: int = 0):  # type: ignore[no-untyped-def]
    generation = Generation((), 0, (), num_draft_tokens=drafted, num_accepted_tokens=accepted)
    return CheckedCase(name, "short", draft_len, cache, Comparison(verdict, 0), generation)  # type: ignore[arg-type]


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
    assert CheckResult(cases).acceptance("cold") == 0.5
    assert CheckResult(cases).acceptance("repeated") == 0.1


def test_without_drafts_there_is_no_acceptance() -> None:
    assert CheckResult((case("a", 0, "cold"),)).acceptance("cold") is None
