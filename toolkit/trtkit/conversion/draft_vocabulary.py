"""The vocabulary of a draft travels beside its converted weights. Knows the file, no weights."""

import shutil
from pathlib import Path

from trtkit.artifacts import sha256_of
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE, read_draft_vocabulary


def carry_draft_vocabulary(source: Path, out: Path, vocab_size: int) -> None:
    """Copy draft_vocabulary.json where there is one. TensorRT-LLM ignores it and computes the logits of all tokens.

    Raises CheckpointError CKPT-VOCABULARY when the file is damaged.
    """
    if read_draft_vocabulary(source, vocab_size) is not None:
        shutil.copyfile(source / DRAFT_VOCABULARY_FILE, out / DRAFT_VOCABULARY_FILE)


def draft_vocabulary_key(source: Path) -> dict[str, str]:
    """What the file adds to the identity of a conversion: nothing where there is none."""
    path = source / DRAFT_VOCABULARY_FILE
    return {"draft_vocabulary": sha256_of(path)} if path.is_file() else {}
