"""The file that names the tokens a draft may propose."""

from pathlib import Path

import pytest
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE, read_draft_vocabulary
from trtkit.errors import CheckpointError


def test_a_checkpoint_without_the_file_computes_all_logits(tmp_path: Path) -> None:
    assert read_draft_vocabulary(tmp_path, 10) is None


def test_the_ids_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / DRAFT_VOCABULARY_FILE).write_text('{"token_ids": [0, 3, 9]}')
    assert read_draft_vocabulary(tmp_path, 10) == (0, 3, 9)


@pytest.mark.parametrize(
    "content",
    [
        '{"token_ids": [0, 10]}',
        '{"token_ids": [-1, 3]}',
        '{"token_ids": [3, 3]}',
        '{"token_ids": [4, 3]}',
        '{"token_ids": []}',
        '{"token_ids": [true, 3]}',
        '{"token_ids": [1.0, 3]}',
        '{"token_ids": ["a", "b"]}',
        '{"token_ids": 7}',
        '{"ids": [1]}',
        "[1, 2]",
        "not json",
    ],
)
def test_anything_but_rising_ids_of_the_vocabulary_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / DRAFT_VOCABULARY_FILE).write_text(content)
    with pytest.raises(CheckpointError) as raised:
        read_draft_vocabulary(tmp_path, 10)
    assert raised.value.code == "CKPT-VOCABULARY"
