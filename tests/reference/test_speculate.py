"""Speculation for many requests at once: lengths of their own, any proposer, and the tokens of each alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trtkit.acceptance import summarize
from trtkit.draft_length import AdaptiveDraftLength, FixedDraftLength
from trtkit.errors import RequestError
from trtkit.reference.draft_target import generate_with_draft, speculate
from trtkit.reference.engine import Engine
from trtkit.reference.prompt_lookup import PromptLookup
from trtkit.reference.proposal import EngineProposer, Proposal
from trtkit.reference.request import GenerationRequest, Returns, StepOutput
from trtkit.reference.sampling.params import SamplingParams

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
WAYS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=0, seed=4),
    SamplingParams(top_k=9, repetition_penalty=1.2, seed=5),
    SamplingParams(top_k=0, top_p=0.8, min_p=0.05, frequency_penalty=0.3, presence_penalty=0.1, seed=6),
)


def plain(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    return tuple(token for output in engine.generate(request) for token in output.token_ids)


@pytest.fixture
def requests(make_prompt: MakePrompt) -> list[GenerationRequest]:
    return [
        GenerationRequest("same id", make_prompt(3 + 9 * i, seed=i), 5 + 4 * i, WAYS[i % 4], end_id=7, min_new_tokens=i)
        for i in range(8)
    ]


def test_many_at_once_with_lengths_of_their_own_answer_as_each_alone(
    make_engine: MakeEngine, requests: list[GenerationRequest], tiny_draft_checkpoint: Path
) -> None:
    alone = [plain(make_engine(), request) for request in requests]
    target, draft = make_engine(max_batch_size=5), make_engine(tiny_draft_checkpoint, max_batch_size=3)
    answers = speculate(
        target,
        EngineProposer(draft, target.vocab_size),
        [(request, FixedDraftLength(i % 5)) for i, request in enumerate(requests)],
    )
    assert [answer.token_ids for answer in answers] == alone
    drafted = [max((a.num_draft_tokens for a in answer.acceptances), default=0) for answer in answers]
    assert drafted == [0, 1, 2, 3, 4, 0, 1, 2]
    target.check()


def test_an_adaptive_length_changes_no_token(
    make_engine: MakeEngine, requests: list[GenerationRequest], tiny_draft_checkpoint: Path
) -> None:
    ticks = iter(range(0, 10**9, 1000))
    longer = [replace(request, max_new_tokens=60) for request in requests]
    target = make_engine()
    proposer = EngineProposer(make_engine(tiny_draft_checkpoint), target.vocab_size)
    answers = speculate(
        target, proposer, [(request, AdaptiveDraftLength(4, max_loss=0.2)) for request in longer], lambda: next(ticks)
    )
    assert [answer.token_ids for answer in answers] == [plain(make_engine(), request) for request in longer]
    assert any(answer.acceptances for answer in answers)


def test_lookup_drafts_are_accepted_where_an_answer_repeats_itself(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    # A greedy tiny model falls into cycles and leaves them again.
    request = GenerationRequest("a", make_prompt(20), 200)
    expected = plain(make_engine(), request)
    [answer] = speculate(make_engine(), PromptLookup(), [(request, FixedDraftLength(6))])
    assert answer.token_ids == expected
    assert (summarize(answer.acceptances).acceptance_rate or 0) > 0.25


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt_ids": (5, 97)}, "REQ-VOCAB"),
        ({"prompt_ids": ()}, "REQ-EMPTY"),
        ({"max_new_tokens": 900}, "REQ-LENGTH"),
    ],
)
@pytest.mark.parametrize("looks_up", [True, False])
def test_a_request_that_is_impossible_ends_alone_with_its_error(
    make_engine: MakeEngine,
    requests: list[GenerationRequest],
    changes: dict[str, Any],
    code: str,
    looks_up: bool,
) -> None:
    wrong = replace(requests[0], **changes)
    proposer = PromptLookup() if looks_up else EngineProposer(make_engine(), 97)
    answers = speculate(make_engine(), proposer, [(r, FixedDraftLength(2)) for r in (wrong, requests[1])])
    assert answers[0].error is not None and answers[0].error.code == code
    assert (answers[0].finish_reason, answers[0].token_ids) == ("error", ())
    assert answers[1].token_ids == plain(make_engine(), requests[1])


def test_a_proposer_that_hands_over_nonsense_ends_that_request_alone(
    make_engine: MakeEngine, requests: list[GenerationRequest]
) -> None:
    class Nonsense:
        def propose(self, wanted: Sequence[tuple[GenerationRequest, int]]) -> list[Proposal]:
            return [Proposal((1,), np.full((1, 97), np.nan, np.float32)) for _ in wanted]

    target = make_engine()
    lengths = (FixedDraftLength(2), FixedDraftLength(0))
    answers = speculate(target, Nonsense(), [(r, k) for r, k in zip(requests[4:6], lengths, strict=True)])
    assert answers[0].error is not None and answers[0].error.code == "REQ-ARRAY"
    assert answers[1].token_ids == plain(make_engine(), requests[5])
    assert not target.has_work


def test_stop_words_end_an_answer_inside_of_an_accepted_draft(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    request = GenerationRequest("a", make_prompt(12), 30)
    free = plain(make_engine(), request)
    at = next(i for i in range(3, 29) if free[i - 1 : i + 1] not in [free[j - 1 : j + 1] for j in range(1, i)])
    ending = replace(request, stop_words=(free[at - 1 : at + 1],))
    answer = generate_with_draft(make_engine(), make_engine(), ending, 9)
    assert (answer.token_ids, answer.finish_reason) == (free[: at + 1], "stop_words")
    assert plain(make_engine(), ending) == free[: at + 1]


def test_bad_words_are_never_completed_with_or_without_a_draft(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    request = GenerationRequest("a", make_prompt(12), 30)
    free = plain(make_engine(), request)
    careful = replace(request, bad_words=((free[0],), (free[5], free[6])))
    answer = plain(make_engine(), careful)
    assert free[0] not in answer
    assert (free[5], free[6]) not in list(pairwise(answer))
    assert answer != free
    assert generate_with_draft(make_engine(), make_engine(), careful, 4).token_ids == answer


def test_a_bias_moves_the_choice_with_or_without_a_draft(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    bias = np.zeros(97, np.float32)
    bias[33] = 1000
    request = GenerationRequest("a", make_prompt(12), 6, embedding_bias=bias)
    assert plain(make_engine(), request) == (33,) * 6
    answer = generate_with_draft(make_engine(), make_engine(), request, 3, by_logits=True)
    assert answer.token_ids == (33,) * 6
    assert summarize(answer.acceptances).acceptance_rate == 1.0


def test_greedy_acceptance_by_logits_is_acceptance_by_tokens(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_draft_checkpoint: Path
) -> None:
    request = GenerationRequest("a", make_prompt(12), 40)
    by_logits = generate_with_draft(make_engine(), make_engine(tiny_draft_checkpoint), request, 4, by_logits=True)
    assert by_logits == generate_with_draft(make_engine(), make_engine(tiny_draft_checkpoint), request, 4)


def test_a_draft_equal_to_the_target_is_accepted_whole_by_logits(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    for sampling in WAYS:
        request = GenerationRequest("a", make_prompt(12), 24, sampling)
        answer = generate_with_draft(make_engine(), make_engine(), request, 4, by_logits=True)
        assert summarize(answer.acceptances).acceptance_rate == 1.0
        assert answer.token_ids == plain(make_engine(), request), "the draft drew with the target's own numbers"


def test_a_threshold_takes_the_place_of_chance(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_draft_checkpoint: Path
) -> None:
    def rate(threshold: float) -> float:
        outcomes = [
            outcome
            for seed in range(6)
            for outcome in generate_with_draft(
                target,
                draft,
                GenerationRequest(
                    "a",
                    make_prompt(9, seed=seed),
                    30,
                    SamplingParams(top_k=0, seed=seed),
                    draft_acceptance_threshold=threshold,
                ),
                3,
                by_logits=True,
            ).acceptances
        ]
        return summarize(outcomes).acceptance_rate or 0.0

    target, draft = make_engine(), make_engine(tiny_draft_checkpoint)
    assert rate(1e-9) == 1.0
    assert rate(1.0) < rate(0.05) < 1.0


def test_logits_over_another_vocabulary_are_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(RequestError, match="REQ-ARRAY"):
        EngineProposer(make_engine(), 98, with_logits=True)


def test_draft_logits_need_one_row_for_each_token(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, request = make_engine(), GenerationRequest("a", make_prompt(5), 6, draft_ids=(1, 2))
    for shape in ((1, 97), (2, 96), (2, 97, 1)):
        with pytest.raises(RequestError, match="REQ-ARRAY: draft_logits has the shape"):
            engine.generate(replace(request, draft_logits=np.zeros(shape, np.float32)))
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(RequestError, match="REQ-ARRAY: draft_logits holds"):
            engine.generate(replace(request, draft_logits=np.full((2, 97), value, np.float32)))
    assert len(plain(engine, request)) == 6


def test_a_draft_that_had_no_allowed_token_costs_the_target_nothing(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    request = GenerationRequest("a", make_prompt(9), 6, bad_words=((5,),))
    only_five = np.where(np.arange(97) == 5, 0, -np.inf).astype(np.float32)[None]
    assert plain(make_engine(), replace(request, draft_ids=(5,), draft_logits=only_five)) == plain(
        make_engine(), request
    )


def test_a_draft_is_attached_only_to_a_request_that_decodes(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="REQ-DRAFT"):
        engine.attach_draft("nobody", (1,))
    engine.submit(GenerationRequest("a", make_prompt(5), 6))
    with pytest.raises(RequestError, match="REQ-DRAFT"):
        engine.attach_draft("a", (1,))
    engine.step()
    engine.attach_draft("a", (1, 2))
    [output] = engine.step()
    assert output.acceptance is not None and output.acceptance.num_draft_tokens == 2


def test_the_target_must_be_idle(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, request = make_engine(), GenerationRequest("a", make_prompt(5), 6)
    engine.submit(request)
    with pytest.raises(RequestError, match="REQ-BUSY"):
        speculate(engine, PromptLookup(), [(request, FixedDraftLength(2))])


def test_a_draft_engine_that_answers_others_is_refused_and_the_target_stays_free(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    target, draft, request = make_engine(), make_engine(), GenerationRequest("a", make_prompt(5), 6)
    draft.submit(request)
    with pytest.raises(RequestError, match="REQ-BUSY"):
        speculate(target, EngineProposer(draft, 97), [(request, FixedDraftLength(2))])
    with pytest.raises(RequestError, match="REQ-BUSY"):
        speculate(target, EngineProposer(target, 97), [(request, FixedDraftLength(2))])
    assert plain(target, request) == plain(make_engine(), request)


@pytest.mark.parametrize("who", ["target", "draft", "alone"])
def test_who_interrupts_an_answer_may_ask_the_next(
    make_engine: MakeEngine, make_prompt: MakePrompt, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    engines = {"target": make_engine(), "draft": make_engine(), "alone": make_engine()}
    request, proposer = GenerationRequest("a", make_prompt(50), 9), EngineProposer(engines["draft"], 97)

    def answer() -> tuple[int, ...]:
        if who == "alone":
            return plain(engines[who], request)
        return speculate(engines["target"], proposer, [(request, FixedDraftLength(2))])[0].token_ids

    expected, interrupted = answer(), engines[who]
    step, num_steps = interrupted.step, 0

    def interrupt() -> list[StepOutput]:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 2:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(interrupted, "step", interrupt)
        answer()
    interrupted.check()
    assert interrupted.num_free_blocks == interrupted.num_blocks
    assert answer() == expected


def test_scores_come_with_the_tokens_of_every_step(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    request = GenerationRequest("a", make_prompt(9), 8, returns=Returns(log_probs=True, generation_logits=True))
    outputs = make_engine().generate(request)
    expected = plain(make_engine(), request)
    [verified] = make_engine().generate(replace(request, draft_ids=expected[:7]))
    assert verified.generation_logits is not None
    np.testing.assert_array_equal(
        verified.generation_logits, np.concatenate([output.generation_logits for output in outputs])
    )
    assert verified.log_probs == tuple(value for output in outputs for value in output.log_probs)
    raw = verified.generation_logits
    own = raw - np.log(np.exp(raw - raw.max(1, keepdims=True)).sum(1, keepdims=True)) - raw.max(1, keepdims=True)
    np.testing.assert_allclose(verified.log_probs, own[np.arange(8), expected], atol=1e-5)


def test_scores_come_with_a_drafted_answer_too(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    returns = Returns(log_probs=True, generation_logits=True, context_logits=True)
    request = GenerationRequest("a", make_prompt(9), 8, returns=returns)
    alone = make_engine().generate(request)
    [answer] = speculate(make_engine(), EngineProposer(make_engine(), 97), [(request, FixedDraftLength(3))])
    assert len(answer.steps) < len(alone) and answer.acceptances
    for scores in ("log_probs", "generation_logits", "context_logits"):
        drafted, plainly = (
            np.concatenate([part for step in steps if (part := getattr(step, scores)) is not None])
            for steps in (answer.steps, alone)
        )
        np.testing.assert_array_equal(drafted, plainly)


def test_several_return_sequences_differ_and_the_first_is_the_request_itself(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    request = GenerationRequest("a", make_prompt(50), 12, SamplingParams(top_k=0, seed=3))
    sequences = request.sequences(4)
    engine = make_engine()
    for each in sequences:
        engine.submit(each)
    answers: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.num_reused_tokens == (0 if output.request_id == "a" else 49), "they share the prompt"
            answers[output.request_id] = answers.get(output.request_id, ()) + output.token_ids
    assert answers["a"] == plain(make_engine(), request)
    assert len(set(answers.values())) == 4
    assert [answers[each.request_id] for each in sequences] == [plain(make_engine(), each) for each in sequences]


@pytest.mark.parametrize("length", [1, 40, 130])
def test_context_logits_are_of_every_prompt_token_and_need_it_computed(
    make_engine: MakeEngine, make_prompt: MakePrompt, length: int
) -> None:
    engine = make_engine()
    prompt = make_prompt(length)
    plain(engine, GenerationRequest("a", prompt, 3))
    request = GenerationRequest("a", prompt, 3, returns=Returns(context_logits=True, generation_logits=True))
    first, second, _ = engine.generate(request)
    assert (first.num_reused_tokens, second.context_logits) == (0, None)
    assert first.context_logits is not None and first.generation_logits is not None
    assert first.context_logits.shape == (length, 97)
    np.testing.assert_array_equal(first.context_logits[-1], first.generation_logits[0])
    steps = [plain(make_engine(), GenerationRequest("a", prompt[:end], 1))[0] for end in range(1, length + 1)]
    assert first.context_logits.argmax(axis=1).tolist() == steps
    [drafted, *_] = make_engine().generate(replace(request, draft_ids=(first.token_ids[0], 5)))
    np.testing.assert_array_equal(drafted.context_logits, first.context_logits)


def test_context_logits_of_a_chunked_prompt_come_whole(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    prompt = make_prompt(1200)
    request = GenerationRequest("a", prompt, 1, returns=Returns(context_logits=True))
    outputs = make_engine(max_seq_len=1300).generate(request)
    logits = [output.context_logits for output in outputs if output.context_logits is not None]
    assert [len(each) for each in logits] == [1200]
    short = make_engine().generate(replace(request, prompt_ids=prompt[:100]))[0].context_logits
    np.testing.assert_array_equal(logits[0][:100], short)


def test_a_request_that_forbids_every_token_ends_alone(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine = make_engine()
    everything = tuple((token,) for token in range(97))
    engine.submit(GenerationRequest("all", make_prompt(5), 4, bad_words=everything))
    engine.submit(GenerationRequest("good", make_prompt(7), 4))
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
    failed = {output.request_id: output.error.code for output in outputs if output.error is not None}
    assert failed == {"all": "REQ-SCORES"}
    assert sum(len(output.token_ids) for output in outputs if output.request_id == "good") == 4


def test_a_draft_ends_where_it_would_end(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    request = GenerationRequest("a", make_prompt(12), 30)
    free = plain(make_engine(), request)
    end_id = next(token for i, token in enumerate(free) if i >= 2 and token not in free[:i])
    proposer = EngineProposer(make_engine(), 97, with_logits=True)
    [proposal] = proposer.propose([(replace(request, end_id=end_id), 20)])
    assert proposal.draft_ids == free[: free.index(end_id) + 1]
    assert proposal.draft_logits is not None and len(proposal.draft_logits) == len(proposal.draft_ids)


def test_what_the_draft_cannot_do_the_target_does_alone(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    request = GenerationRequest("a", make_prompt(40), 20, stop_words=((96, 1),))
    answer = generate_with_draft(make_engine(), make_engine(max_seq_len=44), request, 3)
    assert answer.token_ids == plain(make_engine(), request)
    assert 1 <= len(answer.acceptances) < 5
