"""The student learns from lessons against the clock, and saves itself often. Knows the loss and the optimisers."""

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trtkit.demo.distillation.classes import Class, Classes
from trtkit.demo.distillation.lessons import Lessons
from trtkit.demo.distillation.loss import ChoiceLoss
from trtkit.demo.distillation.student import Student

BATCH_TOKENS = 5120
_MATRIX_RATE, _ROW_RATE = 3e-3, 1e-3
_AVERAGING = 0.98
_DECAY_SHARE = 0.4
_WARM_UP_STEPS = 20
_TESTED_EVERY_S = 90.0


@dataclass(frozen=True)
class Grade:
    """Where training stands: agreement is the share of places where student and target choose the same token."""

    seconds: float
    num_steps: int
    num_tokens: int
    loss: float
    agreement: float


class Training:
    """Optimises a student; what is tested and saved is the average of its recent weights."""

    def __init__(
        self, student: Student, seconds: float, *, seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._student, self._seconds, self._clock = student, seconds, clock
        self._average = copy.deepcopy(student)
        self._random = random.Random(seed)
        matrices = [p for p in student.layers.parameters() if p.ndim == 2]
        others = [p for p in student.parameters() if not any(p is m for m in matrices)]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", ns_steps=4),
            torch.optim.AdamW(others, lr=_ROW_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self._rates = [optimizer.param_groups[0]["lr"] for optimizer in self._optimizers]

    def run(self, lessons: Callable[[], Lessons], held_out: Lessons, out: Path) -> Iterator[Grade]:
        """Learn until the time is over; `lessons` is asked again for every round: more may be written meanwhile."""
        tests = list(Classes(held_out, BATCH_TOKENS).shuffled(random.Random(0)))
        started = tested = self._clock()
        num_steps, num_tokens, losses = 0, 0, []
        for lesson in self._rounds(lessons):
            spent = self._clock() - started
            losses.append(self._learn(lesson, num_steps, min(spent / self._seconds, 1.0)))
            num_steps, num_tokens = num_steps + 1, num_tokens + len(lesson.graded)
            is_over = spent >= self._seconds
            if is_over or self._clock() - tested > _TESTED_EVERY_S:
                save(self._average, out)
                grade = agreement(self._average, tests)
                yield Grade(spent, num_steps, num_tokens, sum(losses) / len(losses), grade)
                tested, losses = self._clock(), []
            if is_over:
                return

    def _rounds(self, lessons: Callable[[], Lessons]) -> Iterator[Class]:
        while True:
            yield from Classes(lessons(), BATCH_TOKENS).shuffled(self._random)

    def _learn(self, lesson: Class, step: int, progress: float) -> float:
        for optimizer, rate in zip(self._optimizers, self._rates, strict=True):
            factor = min((step + 1) / _WARM_UP_STEPS, 1.0, (1 - progress) / _DECAY_SHARE)
            optimizer.param_groups[0]["lr"] = rate * max(factor, 0.01)
        with torch.autocast("cpu", torch.bfloat16):
            loss = lesson_loss(self._student, lesson)
        torch.autograd.backward(loss)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weight = 1 - min(_AVERAGING, (step + 1) / (step + 10))
        with torch.no_grad():
            for mean, parameter in zip(self._average.parameters(), self._student.parameters(), strict=True):
                mean.lerp_(parameter, weight)
        return float(loss.detach())


def lesson_loss(student: Student, lesson: Class) -> Tensor:
    """Cross entropy with the target's choices, as far as the draft's vocabulary has them."""
    states = student(lesson.token_ids).flatten(0, 1)[lesson.graded]
    rows = student.place[lesson.choices]
    weights = lesson.probabilities * (rows >= 0)
    loss: Tensor = ChoiceLoss.apply(states, student.rows, rows.clamp(min=0), weights)  # type: ignore[no-untyped-call]
    return loss


@torch.inference_mode()
def agreement(student: Student, tests: list[Class]) -> float:
    """The share of graded places where the student's likeliest token is the target's."""
    right = total = 0
    for test in tests:
        with torch.autocast("cpu", torch.bfloat16):
            logits = student.logits(student(test.token_ids).flatten(0, 1)[test.graded])
        right += int((student.vocabulary[logits.argmax(-1)] == test.choices[:, 0]).sum())
        total += len(test.graded)
    return right / total


def save(student: Student, path: Path) -> None:
    """Write all that learns, and the vocabulary, beside `path` and rename."""
    beside = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in student.state_dict().items()}, beside)
    beside.rename(path)


def restore(path: Path, target_embedding: Tensor) -> Student:
    """A student as it was saved."""
    tensors = load_file(path)
    num_layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
    student = Student(target_embedding, tensors["vocabulary"], num_layers)
    student.load_state_dict(tensors)
    return student
