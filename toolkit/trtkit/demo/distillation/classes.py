"""Batches of lessons as the student sees them: padded, sorted by length, only the answers graded. Knows no model."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trtkit.demo.distillation.lessons import Lessons

_PADDING = 2


class Class(NamedTuple):
    """B documents of up to S tokens; A graded places in all; C choices of the target.

    token_ids      [B, S]
    graded         [A] places in the flattened batch whose next token is the answer's
    choices        [A, C] token ids of the target's choices there
    probabilities  [A, C] float32
    """

    token_ids: Tensor
    graded: Tensor
    choices: Tensor
    probabilities: Tensor


class Classes:
    """Cuts lessons into batches of about `num_tokens`, documents of similar length together."""

    def __init__(self, lessons: Lessons, num_tokens: int) -> None:
        self._lessons = lessons
        self._starts = lessons.lengths.cumsum(0) - lessons.lengths
        answers = lessons.lengths - lessons.prompt_lengths
        self._answer_starts = answers.cumsum(0) - answers
        self._num_tokens = num_tokens

    def shuffled(self, draw: random.Random) -> Iterator[Class]:
        """Every document once; which documents meet, and the order of batches, is drawn."""
        lengths = self._lessons.lengths.tolist()
        order = sorted(range(len(lengths)), key=lambda index: (lengths[index], draw.random()))
        groups: list[list[int]] = []
        group: list[int] = []
        for index in order:
            if (len(group) + 1) * lengths[index] > self._num_tokens:
                groups.append(group)
                group = []
            group.append(index)
        groups.append(group)
        draw.shuffle(groups)
        return (self._batch(group) for group in groups if group)

    def _batch(self, documents: list[int]) -> Class:
        lessons = self._lessons
        width = max(int(lessons.lengths[index]) for index in documents)
        token_ids = torch.full((len(documents), width), _PADDING)
        graded, answers = [], []
        for row, index in enumerate(documents):
            length, prompt = int(lessons.lengths[index]), int(lessons.prompt_lengths[index])
            start, answer = int(self._starts[index]), int(self._answer_starts[index])
            token_ids[row, :length] = lessons.token_ids[start : start + length]
            graded.append(torch.arange(prompt - 1, length - 1) + row * width)
            answers.append(torch.arange(answer, answer + length - prompt))
        places = torch.cat(answers)
        choices, log_probabilities = lessons.choices[places].long(), lessons.log_probabilities[places]
        return Class(token_ids, torch.cat(graded), choices, log_probabilities.float().exp())
