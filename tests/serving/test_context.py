"""Rolling sinks: what is shown stays bounded, begins with the sinks, and changes only in whole evictions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_llm import ScriptedLlm
from trtkit.draft_length import FixedDraftLength
from trtkit.serving.context import Context, RollingWindow
from trtkit.serving.draft_target import DraftTargetRun, Generation

WINDOW = RollingWindow(sink_tokens=2, window_tokens=8, evict_tokens=3)


def test_nothing_is_dropped_while_everything_fits() -> None:
    context = Context(range(8), WINDOW)
    assert context.make_room(2) == tuple(range(8))
    assert context.num_evicted_tokens == 0


def test_the_oldest_tokens_after_the_sinks_go_in_one_piece() -> None:
    context = Context(range(9), WINDOW)
    assert context.make_room(2) == (0, 1, 5, 6, 7, 8)
    assert context.num_evicted_tokens == 3


def test_without_a_window_every_token_is_shown() -> None:
    context = Context(range(1000))
    assert len(context.make_room(1000)) == 1000
    assert context.room_tokens(50) == 50


def test_a_prompt_longer_than_the_window_keeps_its_sinks_and_its_end() -> None:
    assert Context(range(50), WINDOW).make_room(1) == (0, 1, 44, 45, 46, 47, 48, 49)


@given(st.integers(1, 40), st.lists(st.integers(1, 5), max_size=40))
def test_what_is_shown_is_bounded_and_keeps_sinks_and_order(prompt: int, steps: list[int]) -> None:
    context, appended = Context(range(prompt), WINDOW), prompt
    for step in steps:
        shown = context.make_room(step)
        assert len(shown) + step <= WINDOW.capacity_tokens
        assert shown[: min(2, prompt)] == tuple(range(min(2, prompt)))
        assert list(shown) == sorted(shown)
        assert len(shown) + context.num_evicted_tokens == appended
        context.append(range(appended, appended + step))
        appended += step


@pytest.mark.parametrize("max_draft_len", [0, 3])
@pytest.mark.parametrize("agrees", [True, False])
def test_an_answer_longer_than_the_window_goes_on_within_it(max_draft_len: int, agrees: bool) -> None:
    target = ScriptedLlm(lambda context: context[-1] + 1)
    draft = ScriptedLlm(lambda context: context[-1] + (1 if agrees else 2))
    generation = Generation("r", (200, 201, 202), 100, rolling=WINDOW)
    run = DraftTargetRun(generation, target, draft, FixedDraftLength(max_draft_len))
    assert [token for step in run.steps() for token in step] == list(range(203, 303))
    assert run.finish_reason == "length"
    assert run.num_evicted_tokens > 80
    for call in (*target.calls, *draft.calls):
        assert len(call.prompt_ids) + call.max_new_tokens <= WINDOW.capacity_tokens
        assert call.prompt_ids[:2] == (200, 201)


def test_between_evictions_every_prompt_continues_the_one_before() -> None:
    target = ScriptedLlm(lambda context: context[-1] + 1)
    generation = Generation("r", (0, 1, 2), 60, rolling=WINDOW)
    list(DraftTargetRun(generation, target, ScriptedLlm(lambda c: c[-1] + 2), FixedDraftLength(2)).steps())
    breaks = 0
    for before, after in zip(target.calls, target.calls[1:], strict=False):
        if after.prompt_ids[: len(before.prompt_ids)] != before.prompt_ids:
            breaks += 1
            assert after.num_evicted_tokens == before.num_evicted_tokens + WINDOW.evict_tokens
    assert breaks == target.calls[-1].num_evicted_tokens // WINDOW.evict_tokens
