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

OracleAnswers = dict[tuple[int, ...], tuple[int, ...]]


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
def oracle_answers(oracle: PreTrainedModel, prompts: list[tuple[int, ...]]) -> OracleAnswers:
    answers = {}
    for prompt in prompts:
        whole = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            eos_token_id=END_ID,
            pad_token_id=END_ID,
        )
        answers[prompt] = tuple(whole[0, len(prompt) :].tolist())
    return answers


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


def differing(answers: OracleAnswers, answer_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> list[int]:
    """Numbers of the prompts whose answer is not transformers'."""
    return [number for number, (prompt, theirs) in enumerate(answers.items()) if answer_of(prompt) != theirs]


def test_there_are_at_least_twenty_prompts_and_most_answers_are_long(oracle_answers: OracleAnswers) -> None:
    assert len(oracle_answers) >= 20
    assert sum(len(answer) for answer in oracle_answers.values()) > 0.8 * 20 * MAX_NEW_TOKENS


def test_without_a_draft_the_tokens_are_those_of_transformers(oracle_answers: OracleAnswers, target: Engine) -> None:
    assert differing(oracle_answers, lambda prompt: plain(target, ask(prompt))) == []


def test_with_a_draft_the_tokens_are_those_of_transformers(
    oracle_answers: OracleAnswers, target: Engine, draft: Engine
) -> None:
    assert differing(oracle_answers, lambda p: generate_with_draft(target, draft, ask(p), 4).token_ids) == []


@pytest.mark.parametrize("max_draft_len", [1, 2, 3, 5, 6, 7, 8])
def test_every_draft_length_gives_the_same_tokens(
    oracle_answers: OracleAnswers, target: Engine, draft: Engine, max_draft_len: int
) -> None:
    two = dict(list(oracle_answers.items())[max_draft_len : max_draft_len + 2])
    assert differing(two, lambda p: generate_with_draft(target, draft, ask(p), max_draft_len).token_ids) == []


@pytest.mark.slow
@pytest.mark.parametrize("max_draft_len", range(1, 9))
def test_every_draft_length_gives_the_same_tokens_on_all_prompts(
    oracle_answers: OracleAnswers, target: Engine, draft: Engine, max_draft_len: int
) -> None:
    wrong = differing(oracle_answers, lambda p: generate_with_draft(target, draft, ask(p), max_draft_len).token_ids)
    assert wrong == []


def test_all_prompts_in_flight_together_are_answered_as_one_by_one(
    oracle_answers: OracleAnswers, target: Engine
) -> None:
    for number, prompt in enumerate(oracle_answers):
        target.submit(ask(prompt, str(number)))
    answers: dict[str, tuple[int, ...]] = {}
    while target.has_work:
        for output in target.step():
            answers[output.request_id] = answers.get(output.request_id, ()) + output.token_ids
    expected = {str(number): answer for number, answer in enumerate(oracle_answers.values())}
    assert [number for number in expected if answers[number] != expected[number]] == []


def test_sampling_with_a_draft_gives_the_plain_sample(
    prompts: list[tuple[int, ...]], target: Engine, draft: Engine
) -> None:
    for prompt in prompts[:3]:
        request = ask(prompt, temperature=0.8, top_k=0, top_p=0.95, seed=3)
        assert generate_with_draft(target, draft, request, 3).token_ids == plain(target, request)
