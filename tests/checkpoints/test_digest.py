"""The digest that names a checkpoint: by the content of its files and their place in the folder."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
from trtkit.artifacts import key_of, sha256_of
from trtkit.checkpoints.digest import checkpoint_digest

INDEX = "model.safetensors.index.json"


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """Shards of the same name, each in a subfolder of its own."""
    folder = tiny.tiny_checkpoint(tmp_path / "nested", max_shard_bytes=200_000)
    index = json.loads((folder / INDEX).read_text())
    for shard in set(index["weight_map"].values()):
        (folder / Path(shard).stem).mkdir()
        (folder / shard).rename(folder / Path(shard).stem / "part.safetensors")
    index["weight_map"] = {name: f"{Path(shard).stem}/part.safetensors" for name, shard in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_every_shard_counts_also_where_several_have_one_name(nested: Path) -> None:
    before = checkpoint_digest(nested)
    for shard in sorted(nested.glob("*/part.safetensors")):
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert checkpoint_digest(nested) != before, shard.parent.name
        shard.write_bytes(whole)
    assert checkpoint_digest(nested) == before


def test_a_flat_folder_is_keyed_by_file_names_wherever_it_lies(tmp_path: Path) -> None:
    folder = tiny.tiny_checkpoint(tmp_path / "here")
    expected = key_of({name: sha256_of(folder / name) for name in ("config.json", "model.safetensors")})
    assert checkpoint_digest(folder) == expected
    shutil.move(folder, tmp_path / "there")
    assert checkpoint_digest(tmp_path / "there") == expected
