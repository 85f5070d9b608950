"""A draft's vocabulary stands beside its converted weights, and belongs to the identity of the conversion."""

import json
from pathlib import Path

import pytest
from tiny import tiny_checkpoint
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError


def write_vocabulary(folder: Path, token_ids: list[int]) -> None:
    (folder / DRAFT_VOCABULARY_FILE).write_text(json.dumps({"token_ids": token_ids}))


def test_the_file_is_carried_and_a_change_of_it_converts_again(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "hf")
    out = tmp_path / "out"
    assert not convert_to(source, out, ConversionOptions()).skipped
    assert not (out / DRAFT_VOCABULARY_FILE).exists()
    for token_ids in ([1, 2], [1, 2, 5]):
        write_vocabulary(source, token_ids)
        assert not convert_to(source, out, ConversionOptions()).skipped
        assert json.loads((out / DRAFT_VOCABULARY_FILE).read_text()) == {"token_ids": token_ids}
        assert convert_to(source, out, ConversionOptions()).skipped


def test_a_vocabulary_beyond_the_models_is_refused(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "hf")
    write_vocabulary(source, [1, 10_000_000])
    with pytest.raises(CheckpointError) as raised:
        convert_to(source, tmp_path / "out", ConversionOptions())
    assert raised.value.code == "CKPT-VOCABULARY"
    assert not (tmp_path / "out").exists()
