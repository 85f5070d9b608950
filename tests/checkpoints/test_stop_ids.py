"""End and pad ids out of config.json and generation_config.json."""

from pathlib import Path
from typing import Any

import pytest
import tiny
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.errors import CheckpointError


def stop_ids_of(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> tuple[tuple[int, ...], int]:
    tiny.write_json(folder / "config.json", tiny.tiny_config("llama", **changes))
    if generation is not None:
        tiny.write_json(folder / "generation_config.json", generation)
    return read_stop_ids(folder)


def test_several_end_tokens_are_all_kept_and_the_first_one_pads(tmp_path: Path) -> None:
    assert stop_ids_of(tmp_path, eos_token_id=[2, 5], pad_token_id=None) == ((2, 5), 2)


def test_generation_config_wins_where_it_says_something(tmp_path: Path) -> None:
    assert stop_ids_of(tmp_path, {"eos_token_id": 7}, eos_token_id=2, pad_token_id=3) == ((7,), 3)
    assert stop_ids_of(tmp_path, {}, eos_token_id=2, pad_token_id=3) == ((2,), 3)


@pytest.mark.parametrize("eos, code", [(None, "CKPT-EOS"), ("</s>", "CKPT-CONFIG"), ([2, -1], "CKPT-CONFIG")])
def test_an_end_that_is_no_token_is_refused(tmp_path: Path, eos: Any, code: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        stop_ids_of(tmp_path, eos_token_id=eos)
    assert caught.value.code == code
