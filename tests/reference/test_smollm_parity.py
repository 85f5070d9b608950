"""The real pair in float32: token for token what transformers answers, without and with the draft."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_trtllm import write_checkpoint
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel
from trtkit.reference.draft_target import generate_with_draft
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest
from trtkit.reference.sampling.params import SamplingParams

pytestmark = pytest.mark.demo

MAX_NEW_TOKENS = 64
END_ID = 2
QUESTIONS = (
    "Tell me about the sea.",
    "What is the capital of France, and what is it known for?",
    "Write a short poem about autumn leaves.",
    "Explain photosynthesis to a child.",
    "List three uses of a paper clip.",
    "How do I boil an egg?",
    "Translate 'good morning' into Spanish and German.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Who was Marie Curie?",
    "What is 17 times 23? Show the steps.",
    "Write a Python function that reverses a string.",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "What should I pack for a week in Norway in winter?",
    "Name five animals that live in the desert.",
    "Draft an e-mail asking for a day off.",
)
TEXTS = (
    "Once upon a time, in a small village by the river,",
    "The three laws of thermodynamics state that",
    "def fibonacci(n):\n    ",
    "Breaking news: scientists have discovered that the Moon is slowly moving away from the Earth. " * 6,
)

Answers = dict[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def prompts(demo_pair: dict[str, Path]) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(demo_pair["target"] / "tokenizer.json"))
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    return [tuple(tokenizer.encode(text).ids) for text in (*chats, *TEXTS)]


def load_oracle(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def oracle(demo_pair: dict[str, Path]) -> PreTrainedModel:
    return load_oracle(demo_pair["target"])


@pytest.fixture(scope="module")
def target(oracle: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = write_checkpoint(oracle, tmp_path_factory.mktemp("target"))
    return Engine.load(folder, max_batch_size=4, max_seq_len=1024)


@pytest.fixture(scope="module")
def draft(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = write_checkpoint(load_oracle(demo_pair["draft"]), tmp_path_factory.mktemp("draft"))
    return Engine.load(folder, max_batch_size=2, max_seq_len=1024)


def ask(prompt: tuple[int, ...], request_id: str = "a", **sampling: float) -> GenerationRequest:
    return GenerationRequest(request_id, prompt, MAX_NEW_TOKENS, SamplingParams(**sampling), END_ID)  # type: ignore[arg-type]


def plain(engine: Engine, request: GenerationRequest) -> tuple[int, ...]:
    return tuple(token for output in engine.generate(request) for token in output.token_ids)


@pytest.fixture(scope="module")
def answers(prompts: list[tuple[int, ...]], target: Engine) -> Answers:
    """What the engine answers without a draft; the first test holds it to transformers."""
    return {prompt: plain(target, ask(prompt)) for prompt in prompts}


def differing(answers: Answers, answer_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> list[int]:
    """Numbers of the prompts for which `answer_of` says something else."""
    return [number for number, (prompt, answer) in enumerate(answers.items()) if answer_of(prompt) != answer]


def test_there_are_at_least_twenty_prompts_and_most_answers_are_long(answers: Answers) -> None:
    assert len(answers) >= 20
    assert sum(len(answer) for answer in answers.values()) > 0.8 * 20 * MAX_NEW_TOKENS


def test_every_token_is_the_one_that_transformers_takes(oracle: PreTrainedModel, answers: Answers) -> None:
    """In one pass over prompt and answer its best token at each position is the one that greedy decoding takes."""

    def greedy_choices(prompt: tuple[int, ...]) -> tuple[int, ...]:
        with torch.inference_mode():
            logits = oracle(torch.tensor([(*prompt, *answers[prompt])])).logits[0]
        return tuple(logits[len(prompt) - 1 : -1].argmax(dim=1).tolist())

    assert differing(answers, greedy_choices) == []


@pytest.mark.slow
def test_every_answer_is_what_transformers_generates(oracle: PreTrainedModel, answers: Answers) -> None:
    def generated(prompt: tuple[int, ...]) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        end = {"eos_token_id": END_ID, "pad_token_id": END_ID}
        mask = torch.ones_like(ids)
        whole = oracle.generate(ids, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, **end)
        return tuple(whole[0, len(prompt) :].tolist())

    assert differing(answers, generated) == []


def test_with_a_draft_the_answers_are_the_same(answers: Answers, target: Engine, draft: Engine) -> None:
    assert differing(answers, lambda prompt: generate_with_draft(target, draft, ask(prompt), 2).token_ids) == []


@pytest.mark.parametrize("max_draft_len", [1, 3, 4, 5, 6, 7, 8])
def test_with_every_draft_length_the_answers_are_the_same(
    answers: Answers, target: Engine, draft: Engine, max_draft_len: int
) -> None:
    one = dict(list(answers.items())[max_draft_len : max_draft_len + 1])
    assert differing(one, lambda p: generate_with_draft(target, draft, ask(p), max_draft_len).token_ids) == []


@pytest.mark.slow
@pytest.mark.parametrize("max_draft_len", range(1, 9))
def test_with_every_draft_length_all_answers_are_the_same(
    answers: Answers, target: Engine, draft: Engine, max_draft_len: int
) -> None:
    assert differing(answers, lambda p: generate_with_draft(target, draft, ask(p), max_draft_len).token_ids) == []


def test_all_prompts_in_flight_together_are_answered_as_one_by_one(answers: Answers, target: Engine) -> None:
    for number, prompt in enumerate(answers):
        target.submit(ask(prompt, str(number)))
    together: dict[str, tuple[int, ...]] = {}
    while target.has_work:
        for output in target.step():
            together[output.request_id] = together.get(output.request_id, ()) + output.token_ids
    assert together == {str(number): answer for number, answer in enumerate(answers.values())}


def test_sampling_with_a_draft_gives_the_plain_sample(
    prompts: list[tuple[int, ...]], target: Engine, draft: Engine
) -> None:
    for prompt in prompts[:2]:
        request = ask(prompt, temperature=0.8, top_k=0, top_p=0.95, seed=3)
        assert generate_with_draft(target, draft, request, 3).token_ids == plain(target, request)
