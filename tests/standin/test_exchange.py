"""Engine steps to responses: TensorRT-LLM's rules for what is sent and when an answer is over."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from trtkit.acceptance import Acceptance
from trtkit.errors import RequestError, TrtkitError
from trtkit.reference.request import Beam, BeamRules, BlockUse, FinishReason, GenerationRequest, Returns, StepOutput
from trtkit.serving.tensor import Outputs
from trtkit.standin.exchange import Exchange
from trtkit.standin.requests import LlmRequest

END = 2


@dataclass
class Received:
    """A caller that writes down what it gets."""

    responses: list[tuple[list[int], bool]] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    errors: list[TrtkitError] = field(default_factory=list)

    def send(self, outputs: Outputs, *, final: bool) -> None:
        length = int(outputs["sequence_length"].reshape(-1)[0])
        tokens = outputs["output_ids"].reshape(-1).tolist()
        assert len(tokens) == length
        assert outputs["output_ids"].shape == (1, 1, length)
        self.responses.append((tokens, final))
        self.outputs.append(outputs)

    def fail(self, error: TrtkitError, *, final: bool = True) -> None:
        self.errors.append(error)

    def is_cancelled(self) -> bool:
        return False


def exchange(caller: Received, **changes: Any) -> Exchange:
    own = {key: changes.pop(key) for key in ("draft_ids", "returns", "beam", "end_id") if key in changes}
    generation = GenerationRequest("e", (5, 6), 20, **{"end_id": END, **own})
    values = {"streaming": True, "includes_prompt": False, "wants_measures": False, **changes}
    return Exchange(LlmRequest(generation, **values), caller)


def step(*tokens: int, reason: FinishReason | None = None, **changes: Any) -> StepOutput:
    return StepOutput("e", tokens, reason is not None, reason, 2, changes.pop("reused", 0), **changes)


def test_a_streamed_answer_has_each_steps_tokens_alone() -> None:
    caller = Received()
    answer = exchange(caller)
    assert [answer.take(step(7)), answer.take(step(8)), answer.take(step(9, reason="length"))] == [False, False, True]
    assert caller.responses == [([7], False), ([8], False), ([9], True)]


def test_a_whole_answer_comes_once() -> None:
    caller = Received()
    answer = exchange(caller, streaming=False)
    answer.take(step(7))
    answer.take(step(8, reason="length"))
    assert caller.responses == [([7, 8], True)]


def test_a_whole_answer_begins_with_the_prompt_unless_it_is_excluded() -> None:
    caller = Received()
    exchange(caller, streaming=False, includes_prompt=True).take(step(7, reason="length"))
    assert caller.responses == [([5, 6, 7], True)]


def test_the_end_id_is_not_part_of_the_output() -> None:
    caller = Received()
    answer = exchange(caller)
    answer.take(step(7))
    assert answer.take(step(END, reason="end_id"))
    assert caller.responses == [([7], False), ([], True)]


def test_a_request_with_drafts_is_over_once_they_are_verified() -> None:
    caller = Received()
    answer = exchange(caller, draft_ids=(7, 8, 9))
    assert answer.take(step(7, 8, 1, acceptance=Acceptance(3, (7, 8, 1))))
    assert caller.responses == [([7, 8, 1], True)]


def test_log_probabilities_and_logits_come_with_their_tokens_streamed() -> None:
    caller = Received()
    answer = exchange(caller, returns=Returns(log_probs=True, generation_logits=True, context_logits=True))
    context = np.arange(8, dtype=np.float32).reshape(2, 4)
    row = np.ones((1, 4), np.float32)
    answer.take(step(7, log_probs=(-1.0,), generation_logits=row, context_logits=context))
    answer.take(step(8, 9, log_probs=(-2.0, -4.0), generation_logits=np.vstack([2 * row, 3 * row])))
    answer.take(step(END, reason="end_id", log_probs=(-8.0,), generation_logits=4 * row))
    first, second, last = caller.outputs
    assert [outputs["output_log_probs"].tolist() for outputs in caller.outputs] == [[[[-1]]], [[[-2, -4]]], [[[]]]]
    assert [outputs["cum_log_probs"].tolist() for outputs in caller.outputs] == [[[-1]], [[-7]], [[-7]]]
    np.testing.assert_array_equal(first["context_logits"], context[None])
    assert "context_logits" not in second
    assert second["generation_logits"].shape == (1, 1, 2, 4)
    assert last["generation_logits"].tolist() == [[[[4] * 4]]], "the row that chose the end id"


def test_a_whole_answer_has_all_its_scores() -> None:
    caller = Received()
    answer = exchange(caller, streaming=False, returns=Returns(log_probs=True, generation_logits=True))
    row = np.ones((1, 4), np.float32)
    answer.take(step(7, log_probs=(-1.0,), generation_logits=row))
    answer.take(step(8, reason="length", log_probs=(-2.0,), generation_logits=2 * row))
    [outputs] = caller.outputs
    assert outputs["output_log_probs"].tolist() == [[[-1, -2]]]
    assert outputs["cum_log_probs"].tolist() == [[-3]]
    assert outputs["generation_logits"].tolist() == [[[[1] * 4, [2] * 4]]]


class Beams(Received):
    """Takes several beams in one response."""

    def send(self, outputs: Outputs, *, final: bool) -> None:
        self.outputs.append(outputs)


def test_beams_come_in_one_response_padded_without_their_end_ids() -> None:
    caller = Beams()
    answer = exchange(
        caller,
        streaming=False,
        includes_prompt=True,
        beam=BeamRules(2),
        returns=Returns(log_probs=True, generation_logits=True),
        num_beams=2,
    )
    rows = tuple(np.full(4, value, np.float32) for value in range(3))
    beams = (
        Beam((7, END), -3.0, (-1.0, -2.0), logits=rows[:2]),
        Beam((8, 9, 7), -6.0, (-1.0, -2.0, -3.0), logits=rows),
        Beam((1, 1, 1), -9.0, (-3.0, -3.0, -3.0), logits=rows),
    )
    prompt = np.ones((2, 4), np.float32)
    assert answer.take(step(7, END, reason="end_id", beams=beams, context_logits=prompt))
    [outputs] = caller.outputs
    assert outputs["context_logits"].tolist() == [prompt.tolist()]
    assert outputs["output_ids"].tolist() == [[[5, 6, 7, END, END], [5, 6, 8, 9, 7]]]
    assert outputs["sequence_length"].tolist() == [[3, 5]]
    assert outputs["output_log_probs"].tolist() == [[[-1, 0, 0], [-1, -2, -3]]]
    assert outputs["cum_log_probs"].tolist() == [[-1, -6]]
    assert outputs["generation_logits"][0, :, :, 0].tolist() == [[0, 1, 0], [0, 1, 2]]


def test_a_step_without_tokens_sends_nothing() -> None:
    caller = Received()
    assert not exchange(caller).take(step())
    assert caller.responses == []


def test_a_cancelled_answer_ends_with_what_was_not_sent() -> None:
    caller = Received()
    answer = exchange(caller)
    answer.take(step(7))
    assert answer.take(step(reason="cancelled"))
    assert caller.responses[-1] == ([], True)


def test_an_error_of_the_engine_reaches_the_caller() -> None:
    caller = Received()
    error = RequestError("the logits are not finite", "check the weights")
    assert exchange(caller).take(step(reason="error", error=error))
    assert caller.errors == [error]
    assert caller.responses == []


def test_numbers_of_tokens_come_with_the_last_response_for_those_who_ask() -> None:
    caller = Received()
    answer = exchange(caller, counts=frozenset({"num_input_tokens", "num_output_tokens"}))
    answer.take(step(7))
    answer.take(step(8, END, reason="end_id"))
    counts = [(sent.get("num_input_tokens"), sent.get("num_output_tokens")) for sent in caller.outputs]
    assert counts == [(None, None), (np.array([[2]]), np.array([[2]]))]


def test_measures_come_with_the_last_response_when_asked_for() -> None:
    caller = Received()
    answer = exchange(caller, draft_ids=(7, 8, 9), wants_measures=True, streaming=False)
    answer.take(step(7, 1, reused=9, acceptance=Acceptance(3, (7, 1)), blocks=BlockUse(3, 2)))
    values = {name: array.reshape(-1)[0] for name, array in caller.outputs[-1].items()}
    assert values["kv_cache_reused_blocks"] == 2
    assert (values["kv_cache_alloc_new_blocks"], values["kv_cache_alloc_total_blocks"]) == (3, 5)
    assert values["acceptance_rate"] == pytest.approx(1 / 3)
    assert (values["total_accepted_draft_tokens"], values["total_draft_tokens"]) == (1, 3)
    assert values["arrival_time_ns"] <= values["first_token_time_ns"] <= values["last_token_time_ns"]


def test_an_answer_is_scheduled_when_its_first_step_begins_and_not_when_that_ends() -> None:
    caller, now = Received(), iter(range(100, 200, 10))
    generation = GenerationRequest("e", (5, 6), 20, end_id=END)
    answer = Exchange(LlmRequest(generation, True, False, True), caller, clock_ns=lambda: next(now))
    answer.take(step(7), began_ns=103)
    answer.take(step(8, reason="length"), began_ns=113)
    times = {name: caller.outputs[-1][f"{name}_time_ns"].item() for name in ("arrival", "first_scheduled")}
    assert times == {"arrival": 100, "first_scheduled": 103}
    assert [caller.outputs[-1][f"{name}_token_time_ns"].item() for name in ("first", "last")] == [110, 120]
