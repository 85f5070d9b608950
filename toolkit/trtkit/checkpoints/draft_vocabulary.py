"""The tokens whose logits a draft computes: a file beside its weights. Knows ids, no weights and no logits.

The head of a small model costs more than its layers. A draft may leave out the rows of tokens that are rarely right;
what it cannot propose, the target still says, so the answers stay the target's.
"""

import json
from itertools import pairwise
from pathlib import Path

from trtkit.errors import CheckpointError

DRAFT_VOCABULARY_FILE = "draft_vocabulary.json"


def read_draft_vocabulary(folder: Path, vocab_size: int) -> tuple[int, ...] | None:
    """The ids in rising order, or None when the checkpoint has no such file and computes all logits.

    Raises CheckpointError CKPT-VOCABULARY when the file is not {"token_ids": [...]} with rising ids below vocab_size.
    """
    path = folder / DRAFT_VOCABULARY_FILE
    if not path.is_file():
        return None
    try:
        token_ids = json.loads(path.read_text(encoding="utf-8"))["token_ids"]
        is_valid = _rises(token_ids) and 0 <= token_ids[0] and token_ids[-1] < vocab_size
    except (ValueError, KeyError, TypeError, IndexError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(
            f'not {{"token_ids": [...]}} with rising token ids below {vocab_size}',
            "restore the file, or delete it: the draft then computes the logits of all tokens",
            code="CKPT-VOCABULARY",
            where=str(path),
        )
    return tuple(token_ids)


def _rises(token_ids: list[int]) -> bool:
    whole = all(type(token_id) is int for token_id in token_ids)
    return whole and all(low < high for low, high in pairwise(token_ids))
