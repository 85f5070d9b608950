"""What the engine promises about whole answers: they do not depend on what else happens in the engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_trtllm import edit_tensors, tiny_model, write_checkpoint
from transformers import PreTrainedModel
from trtkit.errors import InputError, RequestError
from trtkit.reference.engine import Engine
from trtkit.reference.kv_cache.options import CacheOptions, KvDtype
from trtkit.reference.request import BlockUse, GenerationRequest, Returns, StepOutput
from trtkit.reference.sampling.params import SamplingParams

MakeEngine = Callable[..., Engine]
MakePrompt = Callable[..., tuple[int, ...]]
SAMPLED = SamplingParams(temperature=0.8, top_k=0, top_p=0.95, seed=7)


def tokens_of(outputs: list[StepOutput], request_id: str = "a") -> tuple[int, ...]:
    return tuple(token for output in outputs if output.request_id == request_id for token in output.token_ids)


def answer(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    return tokens_of(engine.generate(request), request.request_id)


def drain(engine: Engine) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
        engine.check()
    return outputs


def ask(prompt_ids: tuple[int, ...], max_new_tokens: int = 20, **changes: object) -> GenerationRequest:
    return replace(GenerationRequest("a", prompt_ids, max_new_tokens), **changes)  # type: ignore[arg-type]


def test_greedy_tokens_are_those_of_transformers(
    make_engine: MakeEngine, make_prompt: MakePrompt, tiny_llama: PreTrainedModel
) -> None:
    engine = make_engine()
    for length in (1, 2, 63, 64, 65, 130):
        prompt = make_prompt(length, seed=length)
        theirs = tiny_llama.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
        assert answer(engine, ask(prompt, 40)) == tuple(theirs[0, length:].tolist())


def test_one_step_yields_one_token_and_the_last_one_says_why_it_is_the_last(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    outputs = make_engine().generate(ask(make_prompt(5), 3))
    assert [len(output.token_ids) for output in outputs] == [1, 1, 1]
    assert [output.finished for output in outputs] == [False, False, True]
    assert [output.finish_reason for output in outputs] == [None, None, "length"]
    assert {output.num_prompt_tokens for output in outputs} == {5}


def test_the_end_token_ends_the_answer_and_is_part_of_it(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, prompt = make_engine(), make_prompt(9)
    free = answer(engine, ask(prompt))
    outputs = engine.generate(ask(prompt, end_id=free[4]))
    assert tokens_of(outputs) == free[: free.index(free[4]) + 1]
    assert outputs[-1].finish_reason == "end_id"


def test_the_end_token_is_not_chosen_before_min_new_tokens(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, prompt = make_engine(), make_prompt(9)
    end_id = answer(engine, ask(prompt))[0]
    assert answer(engine, ask(prompt, end_id=end_id)) == (end_id,)
    longer = answer(engine, ask(prompt, end_id=end_id, min_new_tokens=6))
    assert end_id not in longer[:6]


def test_a_repeated_prompt_computes_only_its_last_token_and_answers_alike(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine, request = make_engine(), ask(make_prompt(70))
    cold, warm = engine.generate(request), engine.generate(request)
    assert (cold[0].num_reused_tokens, warm[0].num_reused_tokens) == (0, 69)
    assert tokens_of(cold) == tokens_of(warm)


def test_an_answer_says_how_many_blocks_were_taken_and_found(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, request = make_engine(cache=CacheOptions(block_size=16)), ask(make_prompt(40), 20)
    assert engine.generate(request)[-1].blocks == BlockUse(num_new=4, num_reused=0)
    assert engine.generate(request)[-1].blocks == BlockUse(num_new=2, num_reused=2)


def test_a_continued_conversation_reuses_prompt_and_answer(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, prompt = make_engine(), make_prompt(30)
    first = answer(engine, ask(prompt, 10))
    outputs = engine.generate(ask((*prompt, *first, 5, 6), 10))
    assert outputs[0].num_reused_tokens == 39  # the last answer token was never an input
    assert tokens_of(outputs) == answer(make_engine(), ask((*prompt, *first, 5, 6), 10))


def test_a_prompt_that_leaves_a_cached_one_reuses_what_they_share(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine, base = make_engine(), make_prompt(50)
    answer(engine, ask(base))
    other = (*base[:20], (base[20] + 1) % 97, *base[21:])
    outputs = engine.generate(ask(other))
    assert outputs[0].num_reused_tokens == 20
    assert tokens_of(outputs) == answer(make_engine(cache=CacheOptions(reuse="off")), ask(other))


def test_without_reuse_nothing_is_reused(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, request = make_engine(cache=CacheOptions(reuse="off")), ask(make_prompt(30))
    answer(engine, request)
    assert engine.generate(request)[0].num_reused_tokens == 0


def test_a_prefix_is_shared_with_a_sequence_that_is_still_running(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine, prompt = make_engine(), make_prompt(40)
    engine.submit(ask(prompt, 30))
    engine.step()
    engine.submit(ask((*prompt, 3), request_id="b"))
    outputs = drain(engine)
    assert next(output for output in outputs if output.request_id == "b").num_reused_tokens == 40
    assert tokens_of(outputs, "b") == answer(make_engine(), ask((*prompt, 3)))


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_requests_in_flight_together_answer_as_each_alone(
    make_engine: MakeEngine, make_prompt: MakePrompt, sampling: SamplingParams
) -> None:
    requests = [
        GenerationRequest(str(i), make_prompt(length, seed=i), 5 + 3 * i, sampling)
        for i, length in enumerate((3, 80, 1, 64, 200, 17, 33))
    ]
    alone = [answer(make_engine(), request) for request in requests]
    engine = make_engine(max_batch_size=3)  # fewer slots than requests: some wait
    for request in requests:
        engine.submit(request)
    outputs = drain(engine)
    assert [tokens_of(outputs, request.request_id) for request in requests] == alone


def test_a_long_prompt_is_computed_in_chunks_while_others_go_on(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    long = make_prompt(1300)
    engine = make_engine(max_seq_len=1400)
    engine.submit(ask((1, 2), 30, request_id="short"))
    engine.submit(ask(long, 4, request_id="long"))
    seen: list[str] = []
    outputs: list[StepOutput] = []
    while engine.has_work:
        step = engine.step()
        outputs += step
        seen.append("".join(sorted(output.request_id[0] for output in step)))
    assert seen[:3] == ["s", "s", "ls"], "two chunks without an answer, then the third chunk chooses the first token"
    assert tokens_of(outputs, "long") == answer(make_engine(max_seq_len=1400), ask(long, 4))


def test_a_cancelled_request_is_reported_and_its_slot_is_free_at_once(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine = make_engine(max_batch_size=1)
    engine.submit(ask(make_prompt(10), 100))
    engine.submit(ask(make_prompt(10, seed=1), 5, request_id="b"))
    engine.step()
    assert engine.cancel("a")
    outputs = engine.step()
    assert [(output.request_id, output.finish_reason) for output in outputs] == [("a", "cancelled"), ("b", None)]
    assert len(tokens_of(outputs + drain(engine), "b")) == 5


def test_a_waiting_request_can_be_cancelled(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine = make_engine(max_batch_size=1)
    engine.submit(ask(make_prompt(10), 3))
    engine.submit(ask(make_prompt(10), 3, request_id="b"))
    assert engine.cancel("b")
    assert tokens_of(drain(engine), "b") == ()


def test_an_answer_after_a_cancellation_is_the_healthy_one(make_engine: MakeEngine, make_prompt: MakePrompt) -> None:
    engine, request = make_engine(max_batch_size=1), ask(make_prompt(40))
    healthy = answer(engine, request)
    engine.submit(ask((*make_prompt(30), 5), 50))
    for _ in range(5):
        engine.step()
    engine.cancel("a")
    drain(engine)
    assert answer(engine, request) == healthy


def test_cancelling_what_is_not_in_flight_changes_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert not engine.cancel("nobody")
    assert not engine.has_work


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt_ids": ()}, "REQ-EMPTY"),
        ({"prompt_ids": (1, 97)}, "REQ-VOCAB"),
        ({"prompt_ids": (-1,)}, "REQ-VOCAB"),
        ({"draft_ids": (97,)}, "REQ-VOCAB"),
        ({"max_new_tokens": 255}, "REQ-LENGTH"),
        ({"max_new_tokens": 0}, "REQ-TOKENS"),
        ({"min_new_tokens": 21}, "REQ-TOKENS"),
        ({"sampling": SamplingParams(temperature=-1)}, "REQ-SAMPLING"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "REQ-SAMPLING"),
        ({"sampling": SamplingParams(top_p=0)}, "REQ-SAMPLING"),
        ({"sampling": SamplingParams(seed=2**64)}, "REQ-SAMPLING"),
        ({"sampling": SamplingParams(seed=np.uint64(7))}, "REQ-SAMPLING"),  # type: ignore[arg-type]
        ({"sampling": SamplingParams(top_k=2.5)}, "REQ-SAMPLING"),  # type: ignore[arg-type]
        ({"prompt_ids": (1.5, 2)}, "REQ-VOCAB"),
        ({"prompt_ids": "text"}, "REQ-VOCAB"),
        ({"max_new_tokens": 2.5}, "REQ-TOKENS"),
        ({"embedding_bias": np.full(97, 1e300)}, "REQ-ARRAY"),
        ({"embedding_bias": [0.0] * 97}, "REQ-ARRAY"),
        ({"embedding_bias": np.array([None] * 97)}, "REQ-ARRAY"),
        ({"draft_ids": (5,), "draft_logits": np.full((1, 97), 1e300)}, "REQ-ARRAY"),
    ],
)
def test_an_impossible_request_is_refused_and_the_others_go_on(
    make_engine: MakeEngine, changes: dict[str, object], code: str
) -> None:
    engine = make_engine()
    engine.submit(ask((1, 2, 3), 5))
    with pytest.raises(RequestError) as caught:
        engine.submit(replace(ask((1, 2)), request_id="bad", **changes))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert len(tokens_of(drain(engine))) == 5


def test_a_request_that_never_fits_the_cache_is_refused_for_itself(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine = make_engine(cache=CacheOptions(block_size=16, num_blocks=4))
    engine.submit(ask((1, 2, 3), 5))
    with pytest.raises(RequestError, match="need 5 blocks") as caught:
        engine.submit(ask(make_prompt(60), 5, request_id="big"))
    assert caught.value.code == "REQ-CACHE"
    assert len(tokens_of(drain(engine))) == 5


def test_sequences_that_outgrow_the_cache_together_are_answered_all_the_same(
    make_engine: MakeEngine, make_prompt: MakePrompt
) -> None:
    engine = make_engine(cache=CacheOptions(block_size=8, num_blocks=9))
    requests = [ask(make_prompt(14, seed=seed), 40, request_id=str(seed)) for seed in range(3)]
    for request in requests:
        engine.submit(request)
    outputs = drain(engine)
    for request in requests:
        assert tokens_of(outputs, request.request_id) == answer(make_engine(), request)


def test_the_longest_possible_request_is_answered(make_engine: MakeEngine) -> None:
    assert len(answer(make_engine(), ask((1, 2), 254))) == 254


def test_an_id_that_is_in_flight_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(ask((1, 2)))
    with pytest.raises(RequestError, match="already in flight"):
        engine.submit(ask((3, 4)))


def test_generate_needs_an_idle_engine(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(ask((1, 2)))
    with pytest.raises(RequestError, match="other requests"):
        engine.generate(ask((3, 4), request_id="b"))


def test_not_a_number_in_the_logits_ends_that_request_alone(tmp_path: Path) -> None:
    model = tiny_model()
    embedding = model.get_input_embeddings().weight.detach().clone()
    embedding[50] = float("nan")
    folder = edit_tensors(write_checkpoint(model, tmp_path), transformer__vocab_embedding__weight=embedding)
    engine = Engine.load(folder, max_batch_size=2, max_seq_len=64)
    engine.submit(ask((1, 50, 2), 5, request_id="bad"))
    engine.submit(ask((1, 2, 3), 5, request_id="good"))
    outputs = drain(engine)
    [failed] = [output for output in outputs if output.request_id == "bad"]
    assert (failed.finished, failed.finish_reason, failed.token_ids) == (True, "error", ())
    assert isinstance(failed.error, RequestError) and failed.error.code == "REQ-NAN"
    healthy = Engine.load(write_checkpoint(model, tmp_path / "healthy"), max_batch_size=2, max_seq_len=64)
    assert tokens_of(outputs, "good") == answer(healthy, ask((1, 2, 3), 5))


@pytest.fixture
def broken_checkpoint(tmp_path: Path) -> Path:
    """Token 50 is not a number."""
    model = tiny_model()
    embedding = model.get_input_embeddings().weight.detach().clone()
    embedding[50] = float("nan")
    return edit_tensors(write_checkpoint(model, tmp_path), transformer__vocab_embedding__weight=embedding)


def test_a_failed_request_leaves_nothing_behind_for_reuse(broken_checkpoint: Path) -> None:
    engine = Engine.load(broken_checkpoint, max_batch_size=1, max_seq_len=80)
    with pytest.raises(RequestError, match="after token 4 are not finite"):
        engine.generate(ask((1, 2, 3, 50, 4), 5))
    healthy = answer(Engine.load(broken_checkpoint, max_batch_size=1, max_seq_len=80), ask((1, 2, 3), 5))
    assert answer(engine, ask((1, 2, 3), 5)) == healthy


@pytest.mark.parametrize("length", [3, 60, 63])  # the draft in the tile of the prompt, across its end, in the next one
def test_drafts_that_are_not_finite_change_nothing(broken_checkpoint: Path, length: int) -> None:
    engine = Engine.load(broken_checkpoint, max_batch_size=1, max_seq_len=80)
    request = ask((1, 2, 3) * (length // 3) + (1,), 9, returns=Returns(context_logits=True))
    expected = engine.generate(request)
    tokens = tuple(token for output in expected for token in output.token_ids)
    for draft in ((50, 4), (*tokens[:2], 50), (*tokens[:4], 50, 50)):
        outputs = engine.generate(replace(request, draft_ids=draft))
        assert tuple(token for output in outputs for token in output.token_ids) == tokens
        [logits] = [output.context_logits for output in outputs if output.context_logits is not None]
        np.testing.assert_array_equal(logits, expected[0].context_logits)
        engine.check()


@pytest.mark.parametrize("dtype", ["fp8", "int4"])
def test_what_is_not_finite_is_not_hidden_by_a_cache_of_codes(broken_checkpoint: Path, dtype: KvDtype) -> None:
    engine = Engine.load(broken_checkpoint, max_batch_size=1, max_seq_len=80, cache=CacheOptions(dtype))
    with pytest.raises(RequestError, match="after token 3 are not finite"):
        engine.generate(ask((1, 50, 2, 3), 5))


def test_a_prompt_that_is_not_finite_does_not_spoil_the_beginning_that_others_share(broken_checkpoint: Path) -> None:
    engine = Engine.load(
        broken_checkpoint, max_batch_size=2, max_seq_len=80, max_num_tokens=30, cache=CacheOptions(block_size=8)
    )
    beginning = tuple(range(16))
    expected = answer(engine, ask((*range(15), 20), 5))
    engine = Engine.load(
        broken_checkpoint, max_batch_size=2, max_seq_len=80, max_num_tokens=30, cache=CacheOptions(block_size=8)
    )
    engine.submit(ask((*beginning, 50, *range(50)), 5, request_id="bad"))
    engine.step()
    engine.submit(ask((*range(15), 20), 5, request_id="good"))
    assert tokens_of(drain(engine), "good") == expected


@pytest.mark.parametrize("changes", [{"max_batch_size": 0}, {"max_batch_size": -1}, {"max_seq_len": 0}])
def test_a_size_that_serves_nobody_is_refused(make_engine: MakeEngine, changes: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(changes))} is") as caught:
        make_engine(**changes)
    assert caught.value.code == "REF-SIZES"


def test_a_cache_beyond_the_memory_is_refused_with_its_size(make_engine: MakeEngine) -> None:
    with pytest.raises(InputError, match=r"no memory for a KV cache of \d+\.\d GiB") as caught:
        make_engine(cache=CacheOptions(block_size=2**18, num_blocks=2**18))
    assert caught.value.code == "KV-MEMORY"
