"""The next draft is asked for before a step's tokens are shown, and read to its end when nobody needs it."""

from collections.abc import Iterator

import pytest
from scripted_llm import ScriptedLlm
from trtkit.draft_length import FixedDraftLength
from trtkit.errors import ServerError
from trtkit.serving.draft_target import DraftTargetRun, Generation
from trtkit.serving.llm_call import LlmCall
from trtkit.serving.run_scores import LlmReply


def counting(context: tuple[int, ...]) -> int:
    return (context[-1] + 1) % 50


class EagerLlm(ScriptedLlm):
    """Takes a call when it is made, as a model behind a connection does, and says how many were read to their end."""

    num_read = 0

    def generate(self, call: LlmCall) -> Iterator[LlmReply]:
        self.calls.append(call)
        return self._replies(call)

    def _replies(self, call: LlmCall) -> Iterator[LlmReply]:
        for token in self._decoded(call, call.max_new_tokens):
            yield LlmReply((token,))
        self.num_read += 1


def run_of(draft: ScriptedLlm, *, tokens: int = 50) -> DraftTargetRun:
    generation = Generation("r", (1, 2, 3), tokens, end_ids=(99,))
    return DraftTargetRun(generation, ScriptedLlm(counting), draft, FixedDraftLength(4))


def test_the_next_draft_is_under_way_while_a_step_is_shown() -> None:
    draft = EagerLlm(counting)
    steps = run_of(draft).steps()
    shown = next(steps)
    assert [call.prompt_ids for call in draft.calls] == [(1, 2, 3), (1, 2, 3, *shown)]
    assert draft.num_read == 1


def test_the_last_step_asks_for_no_draft() -> None:
    draft = EagerLlm(counting)
    assert len(list(run_of(draft, tokens=10).steps())) == 2
    assert len(draft.calls) == draft.num_read == 2


def test_a_draft_that_a_stop_makes_needless_is_read_to_its_end() -> None:
    draft = EagerLlm(counting)
    run = run_of(draft)
    for _ in run.steps():
        run.stop("stop_words")
    assert len(draft.calls) == draft.num_read == 2
    assert run.token_ids == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_failing_draft_matters_only_to_an_answer_that_needs_it(is_needed: bool) -> None:
    class FailsSecond(EagerLlm):
        def _replies(self, call: LlmCall) -> Iterator[LlmReply]:
            if len(self.calls) > 1:
                raise ServerError("tensorrt_llm_draft is gone", "start it")
            return (yield from super()._replies(call))

    run = run_of(FailsSecond(counting))
    steps = run.steps()
    next(steps)
    if is_needed:
        with pytest.raises(ServerError, match="is gone"):
            next(steps)
    else:
        run.stop("stop_words")
        assert list(steps) == []
        assert run.finish_reason == "stop_words"
