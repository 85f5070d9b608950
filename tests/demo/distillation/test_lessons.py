"""What the target writes for its draft: prompts, answers, files, and batches of them."""

import random
from pathlib import Path

import pytest
import torch
from trtkit.demo.distillation.classes import Classes
from trtkit.demo.distillation.lessons import NUM_CHOICES, Lessons
from trtkit.demo.distillation.prompts import PromptMaker
from trtkit.prompts.files import shipped_prompts


def lessons_of(documents: list[tuple[int, int]]) -> Lessons:
    """Documents of (length, prompt length) whose tokens count up; choice 0 of every answer token is that token."""
    token_ids = torch.arange(sum(length for length, _ in documents), dtype=torch.int32)
    starts = [sum(length for length, _ in documents[:index]) for index in range(len(documents))]
    answers = torch.cat([token_ids[s + p : s + n] for s, (n, p) in zip(starts, documents, strict=True)])
    return Lessons(
        token_ids=token_ids,
        lengths=torch.tensor([length for length, _ in documents], dtype=torch.int32),
        prompt_lengths=torch.tensor([prompt for _, prompt in documents], dtype=torch.int32),
        choices=answers[:, None] + torch.arange(NUM_CHOICES, dtype=torch.int32),
        log_probabilities=torch.zeros(len(answers), NUM_CHOICES, dtype=torch.float16),
    )


def test_files_of_lessons_are_read_back_one_after_the_other(tmp_path: Path) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, documents in zip(paths, ([(5, 2)], [(4, 1), (3, 2)]), strict=True):
        lessons_of(documents).save(path)
    both = Lessons.load(paths)
    assert both.lengths.tolist() == [5, 4, 3]
    assert both.token_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]
    assert both.choices[:, 0].tolist() == [2, 3, 4, 1, 2, 3, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_every_answer_token_is_graded_once_at_the_place_before_it() -> None:
    lessons = lessons_of([(9, 4), (6, 5), (12, 1), (7, 3), (6, 2)])
    graded = []
    for batch in Classes(lessons, 14).shuffled(random.Random(3)):
        assert batch.token_ids.numel() <= 14
        width = batch.token_ids.shape[1]
        for place, choices in zip(batch.graded.tolist(), batch.choices.tolist(), strict=True):
            row, column = divmod(place, width)
            assert batch.token_ids[row, column + 1] == choices[0]
            graded.append(choices[0])
    starts = [0, 9, 15, 27, 34]
    expected = [
        s + t for s, (n, p) in zip(starts, [(9, 4), (6, 5), (12, 1), (7, 3), (6, 2)], strict=True) for t in range(p, n)
    ]
    assert sorted(graded) == expected


@pytest.mark.demo
def test_no_lesson_is_about_a_held_out_topic_or_one_of_the_shipped_prompts(demo_pair: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_pair["target"], local_files_only=True)

    def texts(*, held_out: bool) -> set[str]:
        maker = PromptMaker(demo_pair["target"], seed=5, held_out=held_out)
        return {tokenizer.decode(maker.draw()) for _ in range(1500)}

    lessons, tests = texts(held_out=False), texts(held_out=True)
    shipped = {content for prompt in shipped_prompts() for role, content in prompt.messages if role == "user"}
    shipped -= {"What is the capital of Norway?"}  # the first turn of a chat; the lessons ask for other capitals
    assert not [text for text in lessons for content in shipped if content in text]
    assert not [text for text in lessons if "coral reefs" in text or "the Silk Road" in text]
    assert [text for text in tests if "coral reefs" in text]
