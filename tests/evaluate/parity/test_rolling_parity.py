"""Past the window of rolling sinks: a deployment is held to the oracle's answer to the tokens that are kept."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_tiny import MAX_DRAFT_LEN, Tensors, change_weights, copy_of, deployed_tiny
from hypothesis import given
from hypothesis import strategies as st
from parity_samples import answer, header, step
from tiny import tiny_checkpoint
from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.endpoints.endpoint import Arrival, Generation
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record import ParityRecord
from trtkit.evaluate.oracle.record_choice import Expectation, PromptChoice, record_build, rolling_rule
from trtkit.evaluate.oracle.rolling import RollingRule, Stretch, stretches_of
from trtkit.evaluate.parity.check import CheckedCase, PlannedRequest
from trtkit.evaluate.parity.past_window import is_judgeable, needs_following, passes_window, steps_of_case
from trtkit.evaluate.parity.run import CheckOptions, check_parity
from trtkit.evaluate.parity.summary import window_lines
from trtkit.evaluate.parity.verdicts import Comparison
from trtkit.evaluate.parity.window_scope import WindowScope
from trtkit.serving.context import Context, RollingWindow

RULE = RollingRule(2, 6, 3)
SINKS = {"sink_tokens": 4, "window_tokens": 44, "evict_tokens": 16}
CHOICE = PromptChoice(group="window", limit=2, max_new_tokens=24)


@given(st.integers(0, 40), st.integers(1, 6), st.integers(0, 3), st.integers(6, 12), st.integers(1, 6))
def test_what_is_shown_is_what_the_orchestrator_shows(
    num_tokens: int, room: int, sinks: int, window: int, evict: int
) -> None:
    token_ids = list(range(num_tokens))
    context = Context(token_ids, RollingWindow(sinks, window, evict))
    assert RollingRule(sinks, window, evict).shown(token_ids, room) == context.make_room(room)


@pytest.mark.parametrize(
    ("draft_len", "prompt_lengths", "rolls", "follows"),
    [(3, None, True, True), (3, (5, 6), True, False), (0, None, True, False), (3, None, False, False)],
)
def test_a_different_answer_is_followed_only_where_drafts_moved_its_evictions(
    draft_len: int, prompt_lengths: tuple[int, int] | None, rolls: bool, follows: bool
) -> None:
    """To another prompt the oracle has nothing to say: followed, its answer might pass for identical."""
    got = Comparison("different", 0, prompt_lengths=prompt_lengths)
    case = CheckedCase("a", "window", draft_len, "cold", got, Generation((1,), 0, ()))
    assert needs_following(case, rolls) is follows


def test_an_answer_is_cut_where_a_step_with_its_drafts_no_longer_fits() -> None:
    # Without drafts the window of 8 is full before the fourth token; with two, before the second step.
    prompt = (1, 2, 3, 4, 5)
    plain = list(stretches_of(RULE, prompt, [(6,), (7,), (8,), (9,)], 0, 4))
    assert plain == [Stretch(prompt, (6, 7, 8)), Stretch((1, 2, 6, 7, 8), (9,))]
    drafted = list(stretches_of(RULE, prompt, [(6, 7), (8, 9)], 2, 10))
    assert drafted == [Stretch(prompt, (6, 7)), Stretch((1, 2, 6, 7), (8, 9))]
    # The last step drafts no more than it can use, and needs no more room.
    assert list(stretches_of(RULE, prompt, [(6, 7), (8,)], 2, 3)) == [Stretch(prompt, (6, 7, 8))]


def test_the_oracle_drops_tokens_as_a_deployment_without_drafts(tmp_path: Path) -> None:
    oracle = Oracle.load(tiny_checkpoint(tmp_path / "tiny"))
    prompt = tuple(range(10, 25))
    tokens = tuple(token for token, _ in oracle.answer(prompt, 9, [], RULE))
    expected, shown = [], prompt
    for _ in range(9):
        shown = RULE.shown(shown, 1)
        expected.append(int(oracle.next_logits(shown).argmax()))
        shown = (*shown, expected[-1])
    assert tokens == tuple(expected)
    assert tokens != tuple(token for token, _ in oracle.answer(prompt, 9, []))


def case(draft_len: int, *sizes: int) -> CheckedCase:
    generation = Generation((), 0, tuple(Arrival(0, size) for size in sizes))
    return CheckedCase("a", "window", draft_len, "cold", Comparison("different", 0), generation)


def test_steps_are_what_the_stream_brought_and_an_unseen_end_goes_with_the_last() -> None:
    assert steps_of_case(case(0, 1, 1, 1), [5, 6, 7]) == [(5,), (6,), (7,)]
    assert steps_of_case(case(3, 2, 1, 0), [5, 6, 7]) == [(5, 6), (7,)]
    assert steps_of_case(case(3, 2, 1, 0), [5, 6, 7, 2]) == [(5, 6), (7, 2)]


def test_what_cannot_be_followed_is_not_judged_past_the_window() -> None:
    asked = answer("a", step(10, 9, 5.0), prompt_ids=(1, 2, 3, 4, 5, 6))
    assert passes_window(RULE, asked, 3) and not passes_window(RULE, asked, 2) and not passes_window(None, asked, 99)
    judged = {
        (k, condition): [is_judgeable(PlannedRequest(asked, k, condition), follows=f) for f in (True, False)]
        for k, condition in ((0, "whole"), (0, "cold"), (3, "cold"), (3, "whole"), (3, "stop-word"), (None, "cold"))
    }
    assert judged == {
        (0, "whole"): [True, True],
        (0, "cold"): [True, True],
        (3, "cold"): [True, False],
        (3, "whole"): [False, False],
        (3, "stop-word"): [False, False],
        (None, "cold"): [False, False],
    }


def test_requests_that_are_left_out_are_counted() -> None:
    past, short = (answer(name, step(10, 9, 5.0), prompt_ids=ids) for name, ids in (("a", (1,) * 9), ("b", (1,))))
    record = ParityRecord(header(rolling=RULE), (past, short))
    expected = Expectation(record, record.answers, frozenset(), 2)
    planned = [PlannedRequest(each, k, "cold") for each in record.answers for k in (0, 3)]
    scope = WindowScope.of(expected, in_process=False, follows=False)
    assert [(r.answer.name, r.draft_len) for r in scope.judged(planned)] == [("a", 0), ("b", 0), ("b", 3)]
    document = {"past_window": scope.document()}
    assert document["past_window"] == {
        **{"sink_tokens": 2, "window_tokens": 6, "evict_tokens": 3},
        **{"prompts": ["a"], "num_requests_left_out": 1},
    }
    assert "1 requests left out" in window_lines(document)[0]
    inside = WindowScope.of(expected, in_process=True, follows=False)
    assert [r.answer.name for r in inside.judged(planned)] == ["b", "b"]
    assert [left_out.name for left_out in inside.skipped] == ["a"]


def half_as_good(tensors: Tensors) -> None:
    """A draft that is right at times, so that steps bring one to four tokens."""
    tensors["transformer.layers.2.mlp.proj.weight"][::2] = 0


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    made = deployed_tiny(tmp_path_factory.mktemp("tiny"), attention_sinks=SINKS, kv_cache={"block_size": 16})
    change_weights(made, "draft", half_as_good)
    record_build(made, CHOICE)
    return made


@pytest.fixture
def checked(build: Build) -> Iterator[dict[str, Any]]:
    yield check_parity(Target("tiny", build), CheckOptions(CHOICE))


@pytest.mark.tritonserver
def test_a_served_build_is_identical_past_its_window_at_every_draft_length(checked: dict[str, Any]) -> None:
    assert checked["verdict"] == "identical", checked["prompts"]
    assert checked["past_window"] == SINKS | {
        "prompts": sorted(prompt["name"] for prompt in checked["prompts"]),
        "num_requests_left_out": 0,
    }
    judged = {(case["draft_len"], case["condition"]) for prompt in checked["prompts"] for case in prompt["cases"]}
    assert judged >= {(0, "cold"), (1, "cold"), (MAX_DRAFT_LEN, "repeated")}
    drafting = [case for prompt in checked["prompts"] for case in prompt["cases"] if case["draft_len"]]
    assert any(case["num_near_ties"] == 0 for case in drafting)  # followed: drafts moved an eviction
    assert "2 prompts pass the window of 4 + 44 tokens" in window_lines(checked)[0]


@pytest.mark.tritonserver
def test_an_orchestrator_that_drops_other_tokens_is_different(build: Build, tmp_path: Path) -> None:
    broken = copy_of(build, tmp_path / "build")
    path = broken.repository / "tensorrt_llm_bls" / "config.pbtxt"
    text = path.read_text()
    changed = re.sub(r'(key: "sink_tokens"\s*value \{\s*string_value: ")4"', r'\g<1>3"', text)
    assert changed != text
    path.write_text(changed)
    document = check_parity(Target("tiny", broken), CheckOptions(CHOICE))
    assert document["different"] == len(document["prompts"])


def test_without_a_server_nothing_is_judged_past_the_window_and_that_is_said(build: Build) -> None:
    with pytest.raises(InputError, match="all pass the window") as caught:
        check_parity(Target("tiny", build), CheckOptions(CHOICE, in_process=True))
    assert caught.value.code == "PROMPTS"
    short = PromptChoice(limit=9, max_new_tokens=8)
    document = check_parity(Target("tiny", build), CheckOptions(short, in_process=True))
    assert document["verdict"] == "identical" and document["past_window"]["prompts"] == []
    assert any("passes the window" in left_out["reason"] for left_out in document["skipped"])


def test_the_rule_is_that_of_the_yaml(build: Build) -> None:
    assert rolling_rule(build) == RollingRule(**SINKS)
