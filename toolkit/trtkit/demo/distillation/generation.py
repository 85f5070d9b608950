"""The target writes lessons: batches of prompts of equal length, answered mostly greedily. Knows no draft."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trtkit.demo.distillation.lessons import NUM_CHOICES, Lessons
from trtkit.demo.distillation.prompts import PromptMaker
from trtkit.demo.distillation.teacher import Teacher

BATCH_SIZE = 64
MAX_PROMPT_TOKENS = 96
# The first tokens of most answers are drawn, so that equal prompts lead to different texts, and then the likeliest.
_MAX_DRAWN_TOKENS = 6
_SHARE_ALL_DRAWN = 0.1
_TEMPERATURE = 0.8
_END_ID = 2
# Documents that ended leave the batch when so large a part of it is idle.
_IDLE_PART = 0.25


@dataclass
class _Document:
    """One answer while it is written."""

    prompt: tuple[int, ...]
    num_drawn: int
    answer: list[int]
    choices: list[Tensor]
    log_probabilities: list[Tensor]


class LessonWriter:
    """Writes lessons batch by batch; the prompts that do not fill a batch yet wait for more of their length."""

    def __init__(self, checkpoint: Path, seed: int, *, held_out: bool = False, max_new_tokens: int = 160) -> None:
        self._teacher = Teacher(checkpoint, BATCH_SIZE, MAX_PROMPT_TOKENS + max_new_tokens)
        self._prompts = PromptMaker(checkpoint, seed, held_out=held_out)
        self._generator = torch.Generator().manual_seed(seed)
        self._waiting: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._max_new_tokens = max_new_tokens
        self._is_greedy = held_out

    def write(self) -> Lessons:
        """The next batch of documents."""
        documents = [_Document(prompt, self._num_drawn(), [], [], []) for prompt in self._next_prompts()]
        logits = self._teacher.start(torch.tensor([document.prompt for document in documents]))
        present = documents
        for _ in range(self._max_new_tokens):
            chosen = self._choose(present, logits)
            alive = torch.tensor([document.answer[-1] != _END_ID for document in present])
            if not alive.any():
                break
            if alive.float().mean() <= 1 - _IDLE_PART:
                rows = alive.nonzero().flatten()
                self._teacher.keep(rows)
                present, chosen = [present[row] for row in rows.tolist()], chosen[rows]
            logits = self._teacher.read(chosen[:, None])
        return _collect(documents)

    def _next_prompts(self) -> list[tuple[int, ...]]:
        while True:
            prompt = self._prompts.draw()
            if len(prompt) > MAX_PROMPT_TOKENS:
                continue
            group = self._waiting[len(prompt)]
            group.append(prompt)
            if len(group) == BATCH_SIZE:
                return self._waiting.pop(len(prompt))

    def _num_drawn(self) -> int:
        if self._is_greedy:
            return 0
        draw, which = torch.rand(2, generator=self._generator).tolist()
        return self._max_new_tokens if draw < _SHARE_ALL_DRAWN else int(which * (_MAX_DRAWN_TOKENS + 1))

    def _choose(self, documents: list[_Document], logits: Tensor) -> Tensor:
        """Append a token to every document that has not ended; returns all last tokens [B]."""
        values, choices = logits.topk(NUM_CHOICES)
        log_probabilities = (values - logits.logsumexp(-1, keepdim=True)).half()
        warm = (values / _TEMPERATURE).softmax(-1)
        drawn = choices.gather(1, warm.multinomial(1, generator=self._generator)).flatten().tolist()
        likeliest = choices[:, 0].tolist()
        for row, document in enumerate(documents):
            if document.answer and document.answer[-1] == _END_ID:
                continue
            is_drawn = len(document.answer) < document.num_drawn
            document.answer.append(drawn[row] if is_drawn else likeliest[row])
            document.choices.append(choices[row])
            document.log_probabilities.append(log_probabilities[row])
        return torch.tensor([document.answer[-1] for document in documents])


def _collect(documents: list[_Document]) -> Lessons:
    return Lessons(
        token_ids=torch.tensor([t for each in documents for t in (*each.prompt, *each.answer)], dtype=torch.int32),
        lengths=torch.tensor([len(each.prompt) + len(each.answer) for each in documents], dtype=torch.int32),
        prompt_lengths=torch.tensor([len(each.prompt) for each in documents], dtype=torch.int32),
        choices=torch.stack([row for each in documents for row in each.choices]).int(),
        log_probabilities=torch.stack([row for each in documents for row in each.log_probabilities]),
    )
