"""The sampling surface through a real server: words, bias, scores, drafts with logits, several sequences, beams."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kserve import KServeStream, kserve_stream
from trtkit.engines.inspect import read_engine
from trtkit.evaluate.sampling.distribution import make_bins, p_value
from trtkit.reference.beam_engine import BeamEngine
from trtkit.reference.engine import Engine
from trtkit.reference.request import BeamRules, GenerationRequest, Returns
from trtkit.reference.sampling.params import SamplingParams
from trtkit.reference.sampling.sampler import probabilities
from trtkit.server.triton_server import TritonServer
from trtkit.serving.text import TextTokenizer

pytestmark = pytest.mark.tritonserver
TEXT, NUM_TOKENS, END = "hello world", 16, 2
ALL_SCORES = Returns(log_probs=True, generation_logits=True, context_logits=True)
SCORES_ON = {f"return_{name}": ("BOOL", [[True]]) for name in ("log_probs", "generation_logits", "context_logits")}


@pytest.fixture(scope="module")
def tokenizer(build: Path) -> TextTokenizer:
    return TextTokenizer.load(build / "tokenizer")


@pytest.fixture(scope="module")
def engine(build: Path) -> Engine:
    checkpoint = read_engine(build / "engines" / "target").checkpoint
    assert checkpoint is not None
    return Engine.load(checkpoint, max_batch_size=4, max_seq_len=160, num_threads=1)


@pytest.fixture(scope="module")
def prompt(tokenizer: TextTokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(TEXT, add_special_tokens=True))


@pytest.fixture(scope="module")
def kserve(server: TritonServer) -> Iterator[KServeStream]:
    with kserve_stream(server.endpoints.grpc) as connected:
        yield connected


def ask_bls(kserve: KServeStream, *, drafts: int | None = None, **values: tuple[str, Any]) -> list[dict[str, Any]]:
    request: dict[str, tuple[str, Any]] = {
        "text_input": ("BYTES", [[TEXT.encode()]]),
        "max_tokens": ("INT32", [[NUM_TOKENS]]),
        "exclude_input_in_output": ("BOOL", [[True]]),
        **values,
    }
    if drafts is not None:
        request["num_draft_tokens"] = ("INT32", [[drafts]])
    return kserve.ask("tensorrt_llm_bls", **request)


def ask_llm(kserve: KServeStream, prompt: tuple[int, ...], **values: tuple[str, Any]) -> list[dict[str, Any]]:
    return kserve.ask(
        "tensorrt_llm",
        **{
            "input_ids": ("INT32", [prompt]),
            "input_lengths": ("INT32", [[len(prompt)]]),
            "request_output_len": ("INT32", [[NUM_TOKENS]]),
            "exclude_input_in_output": ("BOOL", [[True]]),
            **values,
        },
    )


def request_of(prompt: tuple[int, ...], **values: Any) -> GenerationRequest:
    return GenerationRequest("r", prompt, NUM_TOKENS, end_id=END, **values)


def tokens_of(engine: Engine, request: GenerationRequest) -> list[int]:
    return [token for output in engine.generate(request) for token in output.token_ids if token != END]


@pytest.mark.parametrize("drafts", [0, 4])
def test_bad_words_do_not_appear(
    kserve: KServeStream, engine: Engine, tokenizer: TextTokenizer, prompt: tuple[int, ...], drafts: int
) -> None:
    free = tokens_of(engine, request_of(prompt))
    word = next(text for token in free[1:] if (text := tokenizer.decode([token], skip_special_tokens=True)).isalpha())
    bad = tuple(tuple(ids) for ids in tokenizer.encode_word(word))
    [answer] = ask_bls(kserve, drafts=drafts, bad_words=("BYTES", [[word.encode()]]))
    expected = tokens_of(engine, request_of(prompt, bad_words=bad))
    assert answer["output_ids"][0] == expected != free


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "ensemble"])
def test_a_biased_word_is_chosen(kserve: KServeStream, tokenizer: TextTokenizer, model: str) -> None:
    values: dict[str, tuple[str, Any]] = {
        "text_input": ("BYTES", [[TEXT.encode()]]),
        "max_tokens": ("INT32", [[4]]),
        "exclude_input_in_output": ("BOOL", [[True]]),
        "embedding_bias_words": ("BYTES", [[b"x"]]),
        "embedding_bias_weights": ("FP32", [[1000.0]]),
    }
    [answer] = kserve.ask(model, **values)
    assert set(answer["text_output"][0][0].decode()) - {" "} == {"x"}


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("streamed", [True, False])
def test_scores_are_the_engines_with_and_without_drafts(
    kserve: KServeStream, engine: Engine, prompt: tuple[int, ...], drafts: int, streamed: bool
) -> None:
    outputs = engine.generate(request_of(prompt, returns=ALL_SCORES))
    log_probs = [value for output in outputs for value in output.log_probs]
    responses = ask_bls(kserve, drafts=drafts, stream=("BOOL", [[streamed]]), **SCORES_ON)
    received = [value for response in responses for value in response["output_log_probs"][0][0]]
    assert received == pytest.approx(log_probs[: len(received)], abs=1e-5)
    assert len(received) == sum(len(response["output_ids"][0]) for response in responses)
    assert responses[-1]["cum_log_probs"][0][0] == pytest.approx(sum(received), abs=1e-4)
    logits = np.concatenate([np.array(r["generation_logits"])[0, 0] for r in responses if "generation_logits" in r])
    expected = np.concatenate([output.generation_logits for output in outputs])
    np.testing.assert_allclose(logits, expected[: len(logits)], atol=1e-4)
    context = np.array(responses[0]["context_logits"])[0]
    assert context.shape == (len(prompt), engine.vocab_size)
    np.testing.assert_allclose(context[-1], expected[0], atol=1e-4)


def test_drafts_with_their_logits_are_judged_by_them(
    kserve: KServeStream, engine: Engine, prompt: tuple[int, ...]
) -> None:
    sampling = SamplingParams(temperature=0.9, top_k=0, top_p=0.99, seed=5)
    drawn = engine.generate(request_of(prompt, sampling=sampling, returns=Returns(generation_logits=True)))[:4]
    draft_ids = [output.token_ids[0] for output in drawn]
    logits = [output.generation_logits[0].tolist() for output in drawn if output.generation_logits is not None]
    values = {"temperature": ("FP32", [[0.9]]), "runtime_top_p": ("FP32", [[0.99]]), "seed": ("UINT64", [[5]])}
    drafts = {"draft_input_ids": ("INT32", [draft_ids]), "return_perf_metrics": ("BOOL", [[True]])}
    [same] = ask_llm(kserve, prompt, **values, **drafts, draft_logits=("FP32", [logits]))
    assert same["output_ids"][0][0][:4] == draft_ids
    assert same["total_accepted_draft_tokens"] == [[4]]
    # The same tokens, said to have been certain: kept with the target's own probability only.
    certain = np.full((4, engine.vocab_size), -100.0, np.float32)
    certain[range(4), draft_ids] = 0
    unlikely = {**values, "seed": ("UINT64", [[7]])}
    [other] = ask_llm(kserve, prompt, **unlikely, **drafts, draft_logits=("FP32", [certain.tolist()]))
    assert other["total_accepted_draft_tokens"][0][0] < 4


@pytest.mark.parametrize("streamed", [True, False])
def test_the_draft_target_model_accepts_by_logits(
    kserve: KServeStream, engine: Engine, prompt: tuple[int, ...], streamed: bool
) -> None:
    by_logits = {"use_draft_logits": ("BOOL", [[True]]), "stream": ("BOOL", [[streamed]])}
    responses = ask_bls(kserve, drafts=4, **by_logits)
    tokens = [token for response in responses for token in response["output_ids"][0]]
    assert tokens == tokens_of(engine, request_of(prompt)), "greedy answers are the target's own"
    sampled = {"temperature": ("FP32", [[1.2]]), "top_p": ("FP32", [[0.95]]), "seed": ("UINT64", [[3]])}
    answers = [ask_bls(kserve, drafts=4, **by_logits, **sampled) for _ in range(2)]
    assert answers[0][-1]["total_draft_tokens"][0][0] > 0
    first, second = ([token for r in answer for token in r["output_ids"][0]] for answer in answers)
    assert first == second, "a seed repeats an answer"


@pytest.mark.parametrize("model", ["tensorrt_llm", "tensorrt_llm_bls"])
def test_several_sequences_say_which_they_are(kserve: KServeStream, prompt: tuple[int, ...], model: str) -> None:
    count = {"num_return_sequences": ("INT32", [[3]]), "seed": ("UINT64", [[1]]), "temperature": ("FP32", [[1.5]])}
    if model == "tensorrt_llm":
        responses = ask_llm(kserve, prompt, runtime_top_p=("FP32", [[0.99]]), **count)
        answers = {r["sequence_index"][0][0]: r["output_ids"][0][0] for r in responses}
    else:
        responses = ask_bls(kserve, top_p=("FP32", [[0.99]]), **count)
        answers = {r["sequence_index"][0][0]: r["output_ids"][0] for r in responses}
    assert sorted(answers) == [0, 1, 2]
    assert len({tuple(tokens) for tokens in answers.values()}) == 3


@pytest.mark.parametrize("count", [None, 2])
def test_beams_come_best_first(
    kserve: KServeStream, engine: Engine, prompt: tuple[int, ...], count: int | None
) -> None:
    front = BeamEngine(engine)
    front.submit(request_of(prompt, beam=BeamRules(4, length_penalty=1.0, early_stopping=False)))
    while front.has_work:
        outputs = front.step()
    values: dict[str, tuple[str, Any]] = {
        "beam_width": ("INT32", [[4]]),
        "len_penalty": ("FP32", [[1.0]]),
        "early_stopping": ("BOOL", [[False]]),
        "end_id": ("INT32", [[END]]),
        "return_log_probs": ("BOOL", [[True]]),
    }
    if count is not None:
        values["num_return_sequences"] = ("INT32", [[count]])
    [response] = ask_llm(kserve, prompt, **values)
    lengths = response["sequence_length"][0]
    beams = [row[:length] for row, length in zip(response["output_ids"][0], lengths, strict=True)]
    expected = outputs[0].beams[: count or 4]
    assert beams == [[token for token in beam.token_ids if token != END] for beam in expected]
    assert len(response["cum_log_probs"][0]) == (count or 4)


def test_the_ensemble_gives_the_text_of_every_beam(kserve: KServeStream) -> None:
    [response] = kserve.ask(
        "ensemble",
        text_input=("BYTES", [[TEXT.encode()]]),
        max_tokens=("INT32", [[6]]),
        beam_width=("INT32", [[3]]),
        exclude_input_in_output=("BOOL", [[True]]),
    )
    assert len(set(response["text_output"][0])) == 3


@pytest.mark.parametrize("by_logits", [True, False])
def test_sampled_answers_follow_the_target_through_all_models(
    kserve: KServeStream, engine: Engine, prompt: tuple[int, ...], by_logits: bool
) -> None:
    """Nine cells, 600 answers: a total variation of 0.12 is found with probability 0.9 at level 1e-3."""
    params = SamplingParams(temperature=1.3, top_k=3)

    def after(token_ids: tuple[int, ...]) -> dict[int, float]:
        [output] = engine.generate(GenerationRequest("p", token_ids, 1, returns=Returns(generation_logits=True)))
        assert output.generation_logits is not None
        probs = probabilities(torch.from_numpy(output.generation_logits[0]) / 1.3, params)
        return {token: float(probs[token]) for token in probs.nonzero().flatten().tolist()}

    joint = {
        (first, second): p * q
        for first, p in after(prompt).items()
        for second, q in (after((*prompt, first)) if first != END else {END: 1.0}).items()
    }
    cells = {pair: number for number, pair in enumerate(joint)}
    counts: list[int] = []
    for seed in range(10):
        responses = ask_bls(
            kserve,
            drafts=2,
            max_tokens=("INT32", [[3]]),
            num_return_sequences=("INT32", [[60]]),
            seed=("UINT64", [[seed]]),
            temperature=("FP32", [[1.3]]),
            top_k=("INT32", [[3]]),
            use_draft_logits=("BOOL", [[by_logits]]),
        )
        for response in responses:
            tokens = [*response["output_ids"][0], END, END]
            counts.append(cells[tokens[0], tokens[1]])
    bins = make_bins({cells[pair]: p for pair, p in joint.items()}, len(counts))
    assert len(counts) == 600
    assert p_value(bins.count(counts), bins.probabilities, np.random.default_rng(0)) > 1e-3


def test_the_ensemble_hands_scores_and_forbidden_words_through(
    kserve: KServeStream, engine: Engine, tokenizer: TextTokenizer, prompt: tuple[int, ...]
) -> None:
    bad = tuple(tuple(ids) for ids in tokenizer.encode_word("e"))
    outputs = engine.generate(request_of(prompt, bad_words=bad, returns=ALL_SCORES))
    [response] = kserve.ask(
        "ensemble",
        text_input=("BYTES", [[TEXT.encode()]]),
        max_tokens=("INT32", [[NUM_TOKENS]]),
        bad_words=("BYTES", [[b"e"]]),
        exclude_input_in_output=("BOOL", [[True]]),
        **SCORES_ON,
    )
    assert response["text_output"][0][0].decode() == tokenizer.decode(
        [token for output in outputs for token in output.token_ids if token != END], skip_special_tokens=True
    )
    log_probs = [value for output in outputs for value in output.log_probs]
    received = response["output_log_probs"][0][0]
    assert received == pytest.approx(log_probs[: len(received)], abs=1e-5)
    assert np.array(response["context_logits"]).shape == (1, len(prompt), engine.vocab_size)
    assert np.array(response["generation_logits"]).shape[:2] == (1, 1)
