"""What patterns of differences are called, and draft lengths that are not kept."""

from typing import Any

import pytest
from parity_samples import answer, header, step
from trtkit.evaluate.endpoints.endpoint import Arrival, Generation
from trtkit.evaluate.oracle.tolerance import NumericProfile
from trtkit.evaluate.parity.check import CheckedCase, CheckResult, Condition, plan_requests
from trtkit.evaluate.parity.diagnosis import diagnose
from trtkit.evaluate.parity.stop_word import StopWord, find_stop_word, up_to_stop
from trtkit.evaluate.parity.verdicts import Comparison, Referee

CONDITIONS: tuple[Condition, ...] = ("cold", "repeated", "whole", "after-cancel", "stop-word", "concurrent")
TOKENS = 8


def case(name: str, draft_len: int, condition: Condition, *, wrong: bool, **change: Any) -> CheckedCase:
    comparison = Comparison("different" if wrong else "identical", 0, **change)
    return CheckedCase(name, "short", draft_len, condition, comparison, Generation((1,) * TOKENS, 0, ()))


def faults(is_wrong: Any, **change: Any) -> list[str]:
    """The names for a check of two prompts, each cold and repeated both plain and drafting."""
    cases = [
        case(name, k, condition, wrong=is_wrong(k, condition), **(change if is_wrong(k, condition) else {}))
        for name, first in (("a", 0), ("b", 3))
        for k in (0, 3)
        for condition in CONDITIONS
        if (condition == "cold") == (k == first) or condition == "repeated"
    ]
    return [found.fault for found in diagnose(CheckResult(tuple(cases)), TOKENS)]


@pytest.mark.parametrize(
    ("fault", "is_wrong"),
    [
        ("model", lambda k, condition: True),
        ("speculation", lambda k, condition: k > 0),
        ("prefix-cache", lambda k, condition: condition != "cold"),
        ("streaming", lambda k, condition: condition != "whole"),
        ("cancellation", lambda k, condition: condition == "after-cancel"),
        ("stop-word", lambda k, condition: condition == "stop-word"),
        ("batching", lambda k, condition: condition == "concurrent"),
    ],
)
def test_a_pattern_of_differences_has_a_name(fault: str, is_wrong: Any) -> None:
    assert faults(is_wrong) == [fault]


def test_streaming_is_no_suspect_where_no_wrong_prompt_was_also_asked_whole() -> None:
    right = [case("a", 0, condition, wrong=False) for condition in ("cold", "whole")]
    others = [case(name, 0, "cold", wrong=name == "b") for name in "bcd"]
    assert [found.fault for found in diagnose(CheckResult((*right, *others)), TOKENS)] == ["unknown"]


def test_nothing_different_has_none() -> None:
    assert faults(lambda k, condition: False) == []


def test_another_number_of_prompt_tokens_is_the_tokenizer_whatever_else_differs() -> None:
    assert faults(lambda k, condition: True, prompt_lengths=(5, 6)) == ["tokenizer"]


def drafting(draft_len: int, steps: list[tuple[int, int]], *, streamed: bool = True) -> CheckedCase:
    """A right answer made of (drafted, accepted) steps, as a deployment that drafts `drafted` reports it."""
    arrivals = tuple(Arrival(0, accepted + 1) for _, accepted in steps)
    token_ids = (1,) * sum(accepted + 1 for _, accepted in steps)
    drafted = sum(each for each, _ in steps)
    got = Generation(token_ids, 0, arrivals, drafted, 0, len(steps), is_streamed=streamed)
    return CheckedCase("a", "short", draft_len, "cold", Comparison("identical", 0), got)


@pytest.mark.parametrize(
    ("draft_len", "steps", "said"),
    [
        (3, [(3, 3), (3, 0), (2, 2)], None),
        (3, [(3, 0), (3, 0), (3, 0), (3, 0), (3, 0), (2, 0), (1, 0), (0, 0)], None),
        (
            3,
            [(4, 0), (4, 0), (4, 0), (4, 0), (4, 0), (3, 0), (2, 0), (1, 0)],
            "26 tokens were drafted where draft length 3",
        ),
        (3, [(2, 0), (2, 0), (2, 0), (2, 0), (2, 0), (1, 0), (0, 0), (0, 0)], "11 tokens were drafted where"),
        (3, [(2, 1)], None),  # an answer of two tokens, which the draft ends as well
        (3, [(3, 0), (1, 0), (1, 0), (3, 0), (3, 0), (2, 0), (1, 0), (0, 0)], None),  # drafts that end too early
        (2, [(3, 3), (3, 3)], "a step brought 4 tokens"),
        (0, [(3, 3), (3, 3)], "though speculation was off"),
        (0, [(0, 0)] * 8, None),
    ],
)
def test_a_draft_length_that_is_not_kept_is_a_fault_of_right_answers(
    draft_len: int, steps: list[tuple[int, int]], said: str | None
) -> None:
    found = diagnose(CheckResult((drafting(draft_len, steps),)), TOKENS)
    assert [each.fault for each in found] == ([] if said is None else ["draft-length"])
    assert said is None or said in found[0].evidence


def test_an_answer_that_came_whole_says_nothing_about_steps() -> None:
    assert diagnose(CheckResult((drafting(3, [(9, 7)], streamed=False),)), TOKENS) == []


WORDS = {5: "the", 6: " cat", 7: " the", 8: " sat", 9: "\ufffd", 10: "!"}


def decode(token_ids: Any) -> str:
    return "".join(WORDS[token] for token in token_ids)


def recorded(*token_ids: int) -> Any:
    return answer("a", *(step(token, 99, 5.0) for token in token_ids))


def test_a_stop_word_is_new_readable_and_followed_by_more() -> None:
    assert find_stop_word(recorded(5, 6, 7, 8, 10, 5, 5), decode, slack=2) == StopWord("sat", 4)
    assert find_stop_word(recorded(5, 6, 7, 8), decode, slack=2) is None
    assert find_stop_word(recorded(5, 9, 9, 9, 5, 5), decode, slack=2) is None  # no text that can be written down


def test_an_answer_may_go_on_to_the_end_of_its_step_but_no_further() -> None:
    stop, asked = StopWord("sat", 4), recorded(5, 6, 7, 8, 10, 5, 5)
    referee = Referee(header(end_ids=()), NumericProfile("float32", 2, 16))
    verdicts = {}
    for length in (3, 4, 6, 7):
        got = up_to_stop(Generation(asked.token_ids[:length], 0, ()), stop, slack=2)
        verdicts[length] = referee.compare(asked, got, stop.num_tokens).verdict
    assert verdicts == {3: "different", 4: "identical", 6: "identical", 7: "different"}


def test_only_the_first_prompt_of_a_group_is_asked_with_a_stop_word() -> None:
    first, second = recorded(5, 6), recorded(5, 8)
    planned = list(plan_requests([first, second], (0, 3), find_stop=lambda answer: StopWord("w", 1)))
    assert [request.stop for request in planned if request.condition == "stop-word"] == [StopWord("w", 1)]
    assert "stop-word" not in [r.condition for r in plan_requests([first], (0,), find_stop=lambda answer: None)]
