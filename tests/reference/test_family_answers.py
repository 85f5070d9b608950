"""Greedy answers of every family are transformers', token by token, from batches of prompts of different lengths.

`pytest -m slow tests/reference/test_family_answers.py` assembles them from several ranks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from oracles import greedy_answers, load_oracle, prompt_of
from tiny import FAMILIES, VOCAB_SIZE, tiny_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.engine import Engine
from trtkit.reference.request import GenerationRequest

LENGTHS = (5, 40)
"""Of the prompts; the windows of the tiny models see 16 tokens."""

PROMPTS_PER_LENGTH = 10
NUM_TOKENS = 128

Answers = Callable[[str], tuple[Path, list[list[int]], list[list[int]]]]


@pytest.fixture(scope="module")
def oracle_answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """family -> checkpoint, prompts, transformers' answers; made once."""
    root, made = tmp_path_factory.mktemp("answers"), {}

    def answers(family: str) -> Any:
        if family not in made:
            source = tiny_checkpoint(root / family, family)
            groups = [[prompt_of(n, VOCAB_SIZE, seed=n + i) for i in range(PROMPTS_PER_LENGTH)] for n in LENGTHS]
            model = load_oracle(source)
            theirs = [answer for group in groups for answer in greedy_answers(model, group, NUM_TOKENS)]
            made[family] = source, [prompt for group in groups for prompt in group], theirs
        return made[family]

    return answers


def engine_answers(checkpoint: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """All prompts at once."""
    engine = Engine.load(checkpoint, max_batch_size=len(prompts), max_seq_len=256)
    for number, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(str(number), tuple(prompt), NUM_TOKENS))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id].extend(output.token_ids)
    return list(tokens.values())


def converted(source: Path, out: Path, **parallelism: int) -> Path:
    out.mkdir()
    convert_checkpoint(source, out, ConversionOptions(dtype="float32", **parallelism))  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_answers_are_transformers(family: str, oracle_answers: Answers, tmp_path: Path) -> None:
    source, prompts, theirs = oracle_answers(family)
    assert engine_answers(converted(source, tmp_path / "out"), prompts) == theirs


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [(2, 1, 1), (2, 2, 1), (4, 1, 2)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_from_several_ranks_are_transformers(
    family: str, parallelism: tuple[int, int, int], oracle_answers: Answers, tmp_path: Path
) -> None:
    tp, pp, ep = parallelism
    experts = ep if family in ("mixtral", "qwen2_moe", "qwen3_moe") else 1
    source, prompts, theirs = oracle_answers(family)
    layout = {"tensor_parallel": tp, "pipeline_parallel": pp, "expert_parallel": experts}
    assert engine_answers(converted(source, tmp_path / "out", **layout), prompts) == theirs


def test_a_batch_of_mixed_lengths_answers_as_one_prompt_alone(tmp_path: Path) -> None:
    checkpoint = converted(tiny_checkpoint(tmp_path / "source", "qwen2_moe"), tmp_path / "out")
    prompts = [prompt_of(length, VOCAB_SIZE, seed=length) for length in (1, 2, 15, 16, 17, 63, 64, 65, 100)]
    alone = [engine_answers(checkpoint, [prompt])[0] for prompt in prompts]
    assert engine_answers(checkpoint, prompts) == alone
