"""Lessons: text the target wrote, with the tokens it thought likeliest at every place. Knows the files, no model."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NUM_CHOICES = 16


@dataclass(frozen=True)
class Lessons:
    """Documents, one after the other, and what the target would have said after each of their answers' places.

    D documents, N tokens of all documents, A answer tokens of all documents, C NUM_CHOICES.
        token_ids         [N] int32
        lengths           [D] int32  tokens of each document
        prompt_lengths    [D] int32  of which the first so many are the prompt; the others are the answer
        choices           [A, C] int32    token ids, likeliest first, at the place of each answer token
        log_probabilities [A, C] float16  of the choices, over the whole vocabulary
    """

    token_ids: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    choices: Tensor
    log_probabilities: Tensor

    def save(self, path: Path) -> None:
        """Write beside, then rename: a stop at any time leaves whole files."""
        beside = path.with_suffix(".partial")
        save_file({field.name: getattr(self, field.name).contiguous() for field in fields(self)}, beside)
        beside.rename(path)

    @classmethod
    def load(cls, paths: Sequence[Path]) -> "Lessons":
        """All documents of all files."""
        parts = [load_file(path) for path in paths]
        return cls(**{field.name: torch.cat([part[field.name] for part in parts]) for field in fields(cls)})
