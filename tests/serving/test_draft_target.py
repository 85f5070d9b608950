"""The draft-target loop, with models that are a few lines: never, always and sometimes of one mind."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_llm import END, NextToken, ScriptedLlm
from trtkit.draft_length import AdaptiveDraftLength, FixedDraftLength
from trtkit.errors import ServerError
from trtkit.serving.draft_target import DraftTargetRun, Generation
from trtkit.serving.llm_call import LlmCall
from trtkit.serving.run_scores import LlmReply


def counting(context: tuple[int, ...]) -> int:
    return (context[-1] + 1) % 50


def contrary(context: tuple[int, ...]) -> int:
    return (context[-1] + 7) % 50


def sometimes(context: tuple[int, ...]) -> int:
    return counting(context) if len(context) % 3 else contrary(context)


def until(length: int, next_token: NextToken = counting) -> NextToken:
    return lambda context: END if len(context) >= length else next_token(context)


def run_of(
    target: ScriptedLlm, draft: ScriptedLlm | None, *, tokens: int = 12, max_draft_len: int = 4
) -> DraftTargetRun:
    generation = Generation("r", (1, 2, 3), tokens, end_ids=(END, 98))
    return DraftTargetRun(generation, target, draft, FixedDraftLength(max_draft_len))


def plain(next_token: NextToken, tokens: int = 12) -> list[int]:
    run = run_of(ScriptedLlm(next_token), None, tokens=tokens)
    return [token for step in run.steps() for token in step]


@pytest.mark.parametrize("draft", [counting, contrary, sometimes])
@pytest.mark.parametrize("target", [counting, contrary, sometimes, until(9), until(6, sometimes)])
@pytest.mark.parametrize("max_draft_len", [1, 2, 4, 8, 20])
def test_speculation_gives_the_tokens_of_the_target_alone(
    target: NextToken, draft: NextToken, max_draft_len: int
) -> None:
    run = run_of(ScriptedLlm(target), ScriptedLlm(draft), max_draft_len=max_draft_len)
    assert [token for step in run.steps() for token in step] == plain(target)
    assert run.finish_reason == ("end_id" if len(run.token_ids) < 12 else "length")


@given(st.integers(0, 30), st.integers(1, 9))
def test_the_budget_is_met_exactly_and_never_drafted_past(tokens: int, max_draft_len: int) -> None:
    target, draft = ScriptedLlm(counting), ScriptedLlm(counting)
    run = run_of(target, draft, tokens=tokens, max_draft_len=max_draft_len)
    assert sum(len(step) for step in run.steps()) == tokens
    assert run.finish_reason == "length"
    produced = 0
    for call in target.calls:
        assert len(call.prompt_ids) == 3 + produced
        assert produced + call.max_new_tokens <= tokens
        produced += call.max_new_tokens


def test_every_step_is_shown_before_the_next_is_asked_for() -> None:
    target = ScriptedLlm(counting)
    steps = run_of(target, ScriptedLlm(counting), tokens=10).steps()
    next(steps)
    assert len(target.calls) == 1


def test_an_agreeing_draft_needs_one_pass_for_five_tokens() -> None:
    run = run_of(ScriptedLlm(counting), ScriptedLlm(counting), tokens=10)
    list(run.steps())
    assert run.num_target_passes == 2
    assert [outcome.num_accepted_tokens for outcome in run.outcomes] == [4, 4]


def test_a_contrary_draft_costs_one_pass_per_token_and_is_never_kept() -> None:
    run = run_of(ScriptedLlm(counting), ScriptedLlm(contrary), tokens=5)
    list(run.steps())
    assert [outcome.num_accepted_tokens for outcome in run.outcomes] == [0, 0, 0, 0]
    assert run.token_ids == plain(counting, 5)


def test_an_empty_draft_is_left_out_of_the_request() -> None:
    target = ScriptedLlm(counting)
    run = run_of(target, ScriptedLlm(lambda _: END), tokens=3)
    list(run.steps())
    assert [call.draft_ids for call in target.calls] == [(), (), ()]
    assert run.token_ids == plain(counting, 3)
    assert run.outcomes == []


def test_one_remaining_token_is_not_drafted() -> None:
    draft = ScriptedLlm(counting)
    list(run_of(ScriptedLlm(counting), draft, tokens=1).steps())
    assert draft.calls == []


def test_a_draft_length_of_zero_asks_the_target_once_and_streams() -> None:
    target, draft = ScriptedLlm(counting), ScriptedLlm(counting)
    run = run_of(target, draft, max_draft_len=0)
    assert [len(step) for step in run.steps()] == [1] * 12
    assert [call.streaming for call in target.calls] == [True]
    assert draft.calls == []


@pytest.mark.parametrize("shows_end", [True, False])
def test_an_end_id_ends_the_answer_whether_the_model_shows_it_or_not(shows_end: bool) -> None:
    for draft in (None, ScriptedLlm(until(8), shows_end=shows_end)):
        run = run_of(ScriptedLlm(until(8), shows_end=shows_end), draft)
        list(run.steps())
        assert (run.token_ids, run.finish_reason) == ([4, 5, 6, 7, 8], "end_id")


def test_a_second_end_id_that_the_engine_does_not_know_ends_the_answer_too() -> None:
    run = run_of(ScriptedLlm(lambda context: 98 if len(context) == 6 else counting(context)), ScriptedLlm(counting))
    list(run.steps())
    assert (run.token_ids, run.finish_reason) == ([4, 5, 6], "end_id")


def test_a_stopped_run_ends_at_its_step_and_tells_the_model_that_is_generating() -> None:
    target = ScriptedLlm(counting)
    run = run_of(target, None, tokens=50)
    for step in run.steps():
        if 8 in step:
            run.stop("stop_words")
    assert run.token_ids == [4, 5, 6, 7, 8]
    assert target.stopped == [target.calls[0].request_id]
    assert run.finish_reason == "stop_words"


def test_a_run_stopped_while_speculating_asks_the_target_no_more() -> None:
    target = ScriptedLlm(counting)
    run = run_of(target, ScriptedLlm(counting), tokens=50)
    for _ in run.steps():
        run.stop("cancelled")
    assert len(target.calls) == 1


def test_a_failing_model_ends_the_run_with_its_error() -> None:
    class Broken(ScriptedLlm):
        def generate(self, call: LlmCall) -> Iterator[LlmReply]:
            raise ServerError("tensorrt_llm_draft is gone", "start it")
            yield LlmReply(())

    with pytest.raises(ServerError, match="is gone"):
        list(run_of(ScriptedLlm(counting), Broken(counting)).steps())


def test_the_minimum_length_counts_what_was_generated_already() -> None:
    target, draft = ScriptedLlm(counting), ScriptedLlm(counting)
    generation = Generation("r", (1,), 12, min_new_tokens=7)
    list(DraftTargetRun(generation, target, draft, FixedDraftLength(4)).steps())
    assert [call.min_new_tokens for call in target.calls] == [5, 2, 0]
    assert [call.min_new_tokens for call in draft.calls] == [4, 2, 0]
    for call in (*target.calls, *draft.calls):
        assert call.min_new_tokens <= call.max_new_tokens, "a model refuses such a call"


def test_every_call_has_its_own_id_so_that_stop_reaches_the_right_one() -> None:
    target, draft = ScriptedLlm(counting), ScriptedLlm(counting)
    list(run_of(target, draft).steps())
    ids = [call.request_id for call in (*target.calls, *draft.calls)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("draft", [counting, contrary, sometimes])
def test_an_adaptive_length_changes_no_token(draft: NextToken) -> None:
    generation = Generation("r", (1, 2, 3), 200)
    ticks = iter(range(0, 10**9, 1000))
    run = DraftTargetRun(
        generation, ScriptedLlm(sometimes), ScriptedLlm(draft), AdaptiveDraftLength(6), clock_ns=lambda: next(ticks)
    )
    list(run.steps())
    assert run.token_ids == plain(sometimes, 200)


class LogitsLlm(ScriptedLlm):
    """Hands out a row of logits for every token and, as engines do, for an end token that it does not show."""

    def generate(self, call: LlmCall) -> Iterator[LlmReply]:
        for reply in super().generate(call):
            tokens = reply.token_ids
            ended = self.next_token((*call.prompt_ids, *tokens)) == END and len(tokens) < call.max_new_tokens
            rows = [np.full(3, token, np.float32) for token in (*tokens, *([END] if ended else []))]
            yield LlmReply(tokens, tuple(-float(t) for t in tokens), np.stack(rows) if rows else np.zeros((0, 3)))


def by_logits(target: ScriptedLlm, draft: ScriptedLlm, *, tokens: int = 12) -> DraftTargetRun:
    generation = Generation("r", (1, 2, 3), tokens, end_ids=(END, 98), by_logits=True)
    return DraftTargetRun(generation, target, draft, FixedDraftLength(4))


def test_by_logits_the_target_gets_what_the_drafts_were_drawn_from() -> None:
    target, draft = ScriptedLlm(sometimes), LogitsLlm(counting, chunk=9)
    run = by_logits(target, draft)
    list(run.steps())
    assert run.token_ids == plain(sometimes)
    assert {call.returns for call in draft.calls} == {frozenset({"generation_logits"})}
    for call in target.calls:
        assert call.returns == frozenset()
        if call.draft_ids:
            assert call.draft_logits is not None
            assert call.draft_logits[:, 0].tolist() == list(call.draft_ids)


@pytest.mark.parametrize("end", [END, 98])
def test_by_logits_an_end_id_is_drafted_and_nothing_behind_it(end: int) -> None:
    def ending(context: tuple[int, ...]) -> int:
        return end if len(context) == 5 else counting(context)

    target = ScriptedLlm(ending)
    run = by_logits(target, LogitsLlm(ending, chunk=9, shows_end=end == 98))
    list(run.steps())
    assert target.calls[0].draft_ids == (4, 5, end)
    assert target.calls[0].draft_logits is not None
    assert target.calls[0].draft_logits[:, 0].tolist() == [4, 5, end]
    assert (run.token_ids, run.finish_reason) == ([4, 5], "end_id")


def test_by_tokens_an_end_id_is_not_drafted() -> None:
    target = ScriptedLlm(until(6))
    list(run_of(target, ScriptedLlm(until(6), shows_end=True)).steps())
    assert target.calls[0].draft_ids == (4, 5, 6)


@pytest.mark.parametrize("draft", [None, contrary, sometimes])
def test_scores_belong_to_the_tokens_that_are_kept(draft: NextToken | None) -> None:
    generation = Generation(
        "r", (1, 2, 3), 9, end_ids=(98,), returns=frozenset({"log_probs", "generation_logits", "context_logits"})
    )
    target = LogitsLlm(lambda context: 98 if len(context) == 9 else sometimes(context), chunk=9)
    run = DraftTargetRun(generation, target, draft and ScriptedLlm(draft), FixedDraftLength(3))
    list(run.steps())
    outputs = run.scores.outputs(0, generation.returns)
    assert outputs["output_log_probs"].tolist() == [[[-token for token in run.token_ids]]]
    assert outputs["cum_log_probs"].tolist() == [[-sum(run.token_ids)]]
    assert outputs["generation_logits"][0, 0, :, 0].tolist() == run.token_ids
    assert run.scores.outputs(2, generation.returns)["output_log_probs"].tolist() == [[[-t for t in run.token_ids[2:]]]]
    asked = ["context_logits" in call.returns for call in target.calls]
    assert asked == [True] + [False] * (len(asked) - 1)


def test_a_draft_that_returns_no_logits_is_named() -> None:
    with pytest.raises(ServerError, match="DRAFT-LOGITS"):
        list(by_logits(ScriptedLlm(counting), ScriptedLlm(counting)).steps())
