"""Speculation changes the speed, never the tokens: drafts that always, never and sometimes agree."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from trtkit.acceptance import summarize
from trtkit.errors import RequestError
from trtkit.reference.draft_target import generate_with_draft
from trtkit.reference.engine import Engine
from trtkit.reference.proposal import EngineProposer
from trtkit.reference.request import GenerationRequest, StepOutput
from trtkit.reference.sampling.params import SamplingParams

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
GREEDY = SamplingParams()
WAYS_TO_SAMPLE = {
    "greedy": GREEDY,
    "greedy with penalties": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    "temperature": SamplingParams(temperature=0.7, top_k=0, seed=3),
    "top-k and penalties": SamplingParams(temperature=1.2, top_k=8, repetition_penalty=1.2, seed=11),
    "top-p and min-p": SamplingParams(top_k=0, top_p=0.9, min_p=0.02, seed=2**64 - 1),
}


def tokens_of(outputs: list[StepOutput]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


def plain(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    return tokens_of(engine.generate(request))


@pytest.fixture
def request_of(make_prompt: MakePrompt) -> Callable[..., GenerationRequest]:
    def make(length: int = 12, max_new_tokens: int = 24, **changes: object) -> GenerationRequest:
        return replace(GenerationRequest("a", make_prompt(length, seed=length), max_new_tokens), **changes)  # type: ignore[arg-type]

    return make


RequestOf = Callable[..., GenerationRequest]


def test_a_draft_that_always_agrees_is_accepted_whole_with_a_bonus_token(
    make_engine: MakeEngine, request_of: RequestOf
) -> None:
    engine, request = make_engine(), request_of()
    expected = plain(engine, request)
    outputs = make_engine().generate(replace(request, draft_ids=expected[:5]))
    assert outputs[0].token_ids == expected[:6]
    assert outputs[0].acceptance is not None and outputs[0].acceptance.num_accepted_tokens == 5
    assert tokens_of(outputs) == expected
    assert {output.acceptance for output in outputs[1:]} == {None}


def test_a_draft_that_never_agrees_yields_the_recovered_token(make_engine: MakeEngine, request_of: RequestOf) -> None:
    engine, request = make_engine(), request_of()
    expected = plain(engine, request)
    wrong = tuple((token + 1) % 97 for token in expected[:4])
    outputs = make_engine().generate(replace(request, draft_ids=wrong))
    assert outputs[0].token_ids == expected[:1]
    assert outputs[0].acceptance is not None and outputs[0].acceptance.num_accepted_tokens == 0
    assert tokens_of(outputs) == expected, "keys of rejected drafts must not be seen again"


@pytest.mark.parametrize("num_right", range(5))
def test_the_first_disagreement_ends_the_run(make_engine: MakeEngine, request_of: RequestOf, num_right: int) -> None:
    engine, request = make_engine(), request_of()
    expected = plain(engine, request)
    draft = (*expected[:num_right], (expected[num_right] + 1) % 97, *expected[num_right + 1 : 6])
    outputs = make_engine().generate(replace(request, draft_ids=draft))
    assert outputs[0].token_ids == expected[: num_right + 1]
    assert tokens_of(outputs) == expected


def test_a_draft_longer_than_the_answer_is_cut(make_engine: MakeEngine, request_of: RequestOf) -> None:
    engine, request = make_engine(), request_of(max_new_tokens=4)
    expected = plain(engine, request)
    outputs = engine.generate(replace(request, draft_ids=(*expected, 1, 2, 3)))
    assert tokens_of(outputs) == expected
    assert outputs[0].acceptance is not None and outputs[0].acceptance.num_draft_tokens == 3


def test_an_end_token_inside_an_accepted_draft_ends_the_answer(make_engine: MakeEngine, request_of: RequestOf) -> None:
    engine, request = make_engine(), request_of()
    expected = plain(engine, request)
    end_id = next(token for i, token in enumerate(expected) if i >= 2 and token not in expected[:i])
    whole = plain(engine, replace(request, end_id=end_id))
    outputs = engine.generate(replace(request, end_id=end_id, draft_ids=expected[:12]))
    assert tokens_of(outputs) == whole and whole[-1] == end_id
    assert outputs[-1].finish_reason == "end_id"


@pytest.mark.parametrize("way", WAYS_TO_SAMPLE)
@pytest.mark.parametrize("max_draft_len", [1, 2, 3, 5, 8])
def test_with_a_draft_the_answer_is_the_plain_one(
    make_engine: MakeEngine, request_of: RequestOf, tiny_draft_checkpoint: Path, way: str, max_draft_len: int
) -> None:
    request = request_of(sampling=WAYS_TO_SAMPLE[way])
    expected = plain(make_engine(), request)
    answer = generate_with_draft(make_engine(), make_engine(tiny_draft_checkpoint), request, max_draft_len)
    assert answer.token_ids == expected
    assert answer.finish_reason == "length"


def test_a_draft_equal_to_the_target_is_always_accepted(make_engine: MakeEngine, request_of: RequestOf) -> None:
    sampled = SamplingParams(temperature=0.9, top_k=0, seed=5)
    for sampling in (GREEDY, sampled):
        answer = generate_with_draft(make_engine(), make_engine(), request_of(sampling=sampling), 4)
        assert summarize(answer.acceptances).acceptance_rate == 1.0
        assert len(answer.acceptances) == 5  # 24 tokens: four rounds of 5, one of 4


def test_a_draft_of_another_model_is_sometimes_accepted(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_draft_checkpoint: Path
) -> None:
    target, draft = make_engine(), make_engine(tiny_draft_checkpoint)
    outcomes = [
        outcome
        for seed in range(8)
        for outcome in generate_with_draft(
            target, draft, GenerationRequest("a", make_prompt(6, seed=seed), 40, SamplingParams(top_k=0, seed=seed)), 3
        ).acceptances
    ]
    rate = summarize(outcomes).acceptance_rate
    assert rate is not None and 0 < rate < 1


def test_rounds_after_the_first_compute_only_what_is_new(make_engine: MakeEngine, request_of: RequestOf) -> None:
    target, request = make_engine(), request_of(length=100)
    expected = plain(target, request)
    outputs = target.generate(replace(request, prompt_ids=(*request.prompt_ids, *expected[:6]), max_new_tokens=2))
    assert outputs[0].num_reused_tokens == 105


def test_a_target_and_a_draft_stop_at_the_end_token(
    make_engine: MakeEngine, request_of: RequestOf, tiny_draft_checkpoint: Path
) -> None:
    request = request_of(max_new_tokens=40)
    target = make_engine()
    end_id = plain(target, request)[10]
    ending = replace(request, end_id=end_id, min_new_tokens=4)
    answer = generate_with_draft(target, make_engine(tiny_draft_checkpoint), ending, 5)
    assert answer.token_ids == plain(make_engine(), ending)
    assert answer.finish_reason == "end_id"


def test_with_draft_length_zero_the_target_answers_alone(make_engine: MakeEngine, request_of: RequestOf) -> None:
    request = request_of()
    answer = generate_with_draft(make_engine(), make_engine(), request, 0)
    assert answer.token_ids == plain(make_engine(), request)
    assert answer.acceptances == ()


def test_a_prompt_too_long_for_the_draft_is_answered_by_the_target_alone(
    make_engine: MakeEngine, request_of: RequestOf
) -> None:
    request = request_of(length=100)
    answer = generate_with_draft(make_engine(), make_engine(max_seq_len=64), request, 4)
    assert answer.token_ids == plain(make_engine(), request)


def test_proposals_outside_the_targets_vocabulary_are_cut_off(make_engine: MakeEngine, request_of: RequestOf) -> None:
    draft, request = make_engine(), request_of()
    [whole] = EngineProposer(draft, 97).propose([(request, 8)])
    limit = max(whole.draft_ids)
    [short] = EngineProposer(draft, limit).propose([(request, 8)])
    assert short.draft_ids == whole.draft_ids[: whole.draft_ids.index(limit)]


def test_an_impossible_request_is_refused_before_the_draft_works(make_engine: MakeEngine) -> None:
    with pytest.raises(RequestError) as caught:
        generate_with_draft(make_engine(), make_engine(), GenerationRequest("a", (), 5), 3)
    assert caught.value.code == "REQ-EMPTY"
