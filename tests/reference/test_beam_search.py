"""Beam search on the engine: transformers' beams and scores in float32, side by side with other requests."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_trtllm import edit_tensors, tiny_model, write_checkpoint
from transformers import PreTrainedModel
from trtkit.errors import RequestError
from trtkit.reference.beam_engine import BeamEngine
from trtkit.reference.engine import Engine
from trtkit.reference.request import Beam, BeamRules, GenerationRequest, Returns, StepOutput
from trtkit.reference.sampling.params import SamplingParams

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
END = 11


def drain(engine: BeamEngine) -> list[StepOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def beams_of(engine: Engine, request: GenerationRequest) -> tuple[Beam, ...]:
    front = BeamEngine(engine)
    front.submit(request)
    [output] = drain(front)
    assert output.finished and output.token_ids == output.beams[0].token_ids
    return output.beams


def ask(prompt_ids: tuple[int, ...], width: int = 3, new: int = 12, **changes: Any) -> GenerationRequest:
    rules = {key: changes.pop(key) for key in ("length_penalty", "early_stopping") if key in changes}
    request = GenerationRequest("a", prompt_ids, new, end_id=END, beam=BeamRules(width, **rules))
    return replace(request, **changes)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"length_penalty": 0.0, "early_stopping": True},
        {"length_penalty": 2.0},
        {"length_penalty": -0.5},
        {"early_stopping": True},
    ],
    ids=str,
)
def test_beams_and_scores_are_those_of_transformers(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_llama: PreTrainedModel, width: int, rules: dict[str, Any]
) -> None:
    engine = make_engine()
    num_ended = 0
    for seed, length in enumerate((1, 5, 30, 64, 70)):
        prompt = make_prompt(length, seed=seed)
        free = engine.generate(GenerationRequest("a", prompt, 4))
        end_id = free[-1].token_ids[0]  # a likely one
        theirs = tiny_llama.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, length),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=end_id,
            pad_token_id=end_id,
            return_dict_in_generate=True,
            output_scores=True,
            **{"length_penalty": 1.0, "early_stopping": False, **rules},
        )
        ours = beams_of(engine, ask(prompt, width, 40, end_id=end_id, **rules))
        for beam, sequence, score in zip(ours, theirs.sequences, theirs.sequences_scores, strict=True):
            expected = sequence[length : length + len(beam.token_ids)].tolist()
            assert list(beam.token_ids) == expected
            assert set(sequence[length + len(beam.token_ids) :].tolist()) <= {end_id}, "padding"
            assert beam.score == pytest.approx(float(score), rel=1e-5)
            num_ended += len(beam.token_ids) < 40
    assert num_ended > 0 or rules == {"length_penalty": 2.0}, "the end token must have been met, or nothing was tried"


def test_log_probabilities_add_up_and_the_best_beam_beats_greedy(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    request = ask(make_prompt(9), 4, length_penalty=0.0, end_id=None, returns=Returns(generation_logits=True))
    beams = beams_of(make_engine(), request)
    greedy = make_engine().generate(replace(request, beam=None, returns=Returns(log_probs=True)))
    assert beams[0].score >= sum(value for output in greedy for value in output.log_probs) - 1e-5
    for beam in beams:
        assert beam.cum_log_prob == pytest.approx(sum(beam.log_probs), abs=1e-4)
        logits = torch.from_numpy(np.stack(beam.logits))
        own = torch.log_softmax(logits, dim=1)[torch.arange(12), torch.tensor(beam.token_ids)]
        assert beam.log_probs == pytest.approx(own.tolist(), abs=1e-6)


def test_penalties_words_bias_and_the_minimum_apply_to_beams(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    prompt = make_prompt(9)
    free = beams_of(make_engine(), ask(prompt))
    penalised = beams_of(make_engine(), ask(prompt, sampling=SamplingParams(repetition_penalty=3.0)))
    assert penalised[0].token_ids != free[0].token_ids
    bad = free[0].token_ids[:2]
    careful = beams_of(make_engine(), ask(prompt, bad_words=(bad,)))
    assert all(bad not in list(pairwise(beam.token_ids)) for beam in careful)
    bias = np.zeros(97, np.float32)
    bias[END] = 100
    assert beams_of(make_engine(), ask(prompt, embedding_bias=bias))[0].token_ids == (END,)
    later = beams_of(make_engine(), ask(prompt, embedding_bias=bias, min_new_tokens=4))
    assert all(END not in beam.token_ids[:4] for beam in later)
    assert later[0].token_ids[4] == END


def test_a_stop_word_finishes_a_beam(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    free = beams_of(make_engine(), ask(make_prompt(9), end_id=None))
    word = free[0].token_ids[2:4]
    front = BeamEngine(make_engine())
    front.submit(ask(make_prompt(9), end_id=None, stop_words=(word,), length_penalty=0.0))
    [output] = drain(front)
    assert any(beam.token_ids[-2:] == word for beam in output.beams)
    assert all(word not in list(pairwise(beam.token_ids[:-1])) for beam in output.beams)


def test_beams_run_beside_other_requests_and_each_other(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    searches = [replace(ask(make_prompt(10 + i, seed=i), 2 + i), request_id=f"s{i}") for i in range(3)]
    plain = GenerationRequest("p", make_prompt(20), 15, SamplingParams(top_k=0, seed=3))
    alone = {request.request_id: beams_of(make_engine(), request) for request in searches}
    engine = make_engine(max_batch_size=3)  # fewer places than beams
    front = BeamEngine(engine)
    for request in (*searches[:2], plain, searches[2]):
        front.submit(request)
    outputs = drain(front)
    engine.check()
    assert {output.request_id: output.beams for output in outputs if output.beams} == alone
    tokens = [token for output in outputs if output.request_id == "p" for token in output.token_ids]
    assert tokens == [token for output in make_engine().generate(plain) for token in output.token_ids]


def test_a_cancelled_search_is_reported_and_leaves_nothing_behind(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    front = BeamEngine(make_engine())
    front.submit(ask(make_prompt(10), 4, new=50))
    for _ in range(3):
        assert front.step() == []
    assert front.cancel("a")
    [output] = drain(front)
    assert (output.request_id, output.finish_reason, output.num_prompt_tokens) == ("a", "cancelled", 10)
    assert not front.cancel("a")
    assert beams_of(make_engine(), ask(make_prompt(10))) == beams_of(make_engine(), ask(make_prompt(10)))


def test_a_prompt_found_in_the_cache_is_reported(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    front = BeamEngine(make_engine())
    reused = []
    for _ in range(2):
        front.submit(ask(make_prompt(40)))
        [output] = drain(front)
        reused.append(output.num_reused_tokens)
    assert reused == [0, 39]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"width": 1}, "REQ-BEAM"),
        ({"width": 5}, "REQ-BEAM"),
        ({"length_penalty": float("nan")}, "REQ-BEAM"),
        ({"draft_ids": (1,)}, "REQ-BEAM"),
        ({"prompt_ids": ()}, "REQ-EMPTY"),
        ({"new": 400}, "REQ-LENGTH"),
    ],
)
def test_an_impossible_search_is_refused(make_engine: MakeEngine, changes: dict[str, Any], code: str) -> None:
    front = BeamEngine(make_engine())
    with pytest.raises(RequestError) as caught:
        front.submit(ask(**{"prompt_ids": (1, 2), **changes}))
    assert caught.value.code == code
    front.submit(ask((1, 2)))
    with pytest.raises(RequestError, match="already in flight"):
        front.submit(ask((1, 2)))
    with pytest.raises(RequestError, match="already in flight"):
        front.submit(replace(ask((1, 2)), beam=None))
    assert len(drain(front)) == 1
    front.submit(replace(ask((1, 2)), beam=None))
    with pytest.raises(RequestError, match="already in flight"):
        front.submit(ask((1, 2)))


def test_the_logits_of_a_prompt_come_with_its_beams(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    returns = Returns(context_logits=True)
    request = ask(make_prompt(40), returns=returns)
    front = BeamEngine(make_engine())
    front.submit(request)
    [output] = drain(front)
    alone = make_engine().generate(replace(request, beam=None, returns=returns))
    np.testing.assert_array_equal(output.context_logits, alone[0].context_logits)


def test_the_engine_itself_refuses_beams(make_engine: MakeEngine) -> None:
    with pytest.raises(RequestError, match="REQ-BEAM"):
        make_engine().submit(ask((1, 2)))


def test_not_a_number_ends_a_search_alone(tmp_path: Path) -> None:
    model = tiny_model()
    embedding = model.get_input_embeddings().weight.detach().clone()
    embedding[50] = float("nan")
    folder = edit_tensors(write_checkpoint(model, tmp_path), transformer__vocab_embedding__weight=embedding)
    front = BeamEngine(Engine.load(folder, max_batch_size=4, max_seq_len=64))
    front.submit(replace(ask((1, 50, 2)), request_id="bad"))
    front.submit(GenerationRequest("good", (1, 2, 3), 5))
    outputs = drain(front)
    [failed] = [output for output in outputs if output.request_id == "bad"]
    assert failed.finish_reason == "error" and isinstance(failed.error, RequestError)
    assert failed.error.code == "REQ-NAN"
    assert sum(len(output.token_ids) for output in outputs if output.request_id == "good") == 5


def test_a_search_that_forbids_every_token_ends_alone(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    front = BeamEngine(make_engine())
    front.submit(replace(ask(make_prompt(5), bad_words=tuple((token,) for token in range(97))), request_id="bad"))
    front.submit(ask(make_prompt(6)))
    outputs = {output.request_id: output for output in drain(front)}
    assert outputs["bad"].error is not None and outputs["bad"].error.code == "REQ-SCORES"
    assert outputs["a"].beams
