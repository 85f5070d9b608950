"""What is fetched from the hub: whole checkpoints for a build, config.json and tokenizer for a look ahead."""

import fnmatch
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from tiny import tiny_checkpoint
from trtkit.checkpoints.source import find_checkpoint, resolve_checkpoint
from trtkit.config.load import load_config
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.run import BuildOptions


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub with one repository, org/model; the names of the files that were fetched from it."""
    source, fetched = tmp_path / "hub", list[str]()
    tiny_checkpoint(source, tokenizer=True)
    (source / "model.safetensors.index.json").write_text("{}")

    def snapshot_download(name: str, *, local_dir: Path, allow_patterns: list[str], **choices: Any) -> None:
        ignored = choices["ignore_patterns"] or ""
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            wanted = any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns)
            if wanted and not fnmatch.fnmatch(file.name, ignored):
                shutil.copy(file, local_dir)
                fetched.append(file.name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return fetched


def test_a_build_fetches_the_weights(hub: list[str], tmp_path: Path) -> None:
    folder = resolve_checkpoint("org/model", tmp_path)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(hub)
    assert find_checkpoint("org/model", tmp_path) == folder


def test_a_look_ahead_fetches_no_weights_and_leaves_no_half_checkpoint(hub: list[str], tmp_path: Path) -> None:
    folder = resolve_checkpoint("org/model", tmp_path, weights=False)
    assert {"config.json", "tokenizer.json"} <= set(hub)
    assert not [name for name in hub if "safetensors" in name]
    assert find_checkpoint("org/model", tmp_path) is None
    fetched = len(hub)
    assert resolve_checkpoint("org/model", tmp_path, weights=False) == folder
    assert len(hub) == fetched, "the second look needs no hub"
    assert (resolve_checkpoint("org/model", tmp_path) / "model.safetensors").is_file()


def test_a_dry_run_of_a_hub_id_fetches_no_weights(hub: list[str], tmp_path: Path) -> None:
    document = {
        "name": "remote",
        "backend": "engine",
        "gpu": {"name": "h100-sxm-80gb", "count": 1},
        "target": {"checkpoint": "org/model", "dtype": "bfloat16"},
        "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 32},
    }
    (tmp_path / "remote.yaml").write_text(yaml.safe_dump(document))
    options = BuildOptions(cache=tmp_path, where="remote.yaml", out=tmp_path / "build")
    planned = dry_run(load_config(tmp_path / "remote.yaml"), options)
    assert any(stage.command for stage in planned)
    assert hub and not [name for name in hub if "safetensors" in name]
