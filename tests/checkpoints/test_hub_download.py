"""What is fetched from the hub: whole checkpoints for a build, config.json and tokenizer for a look ahead."""

import errno
import fnmatch
import hashlib
import json
import shutil
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml
from tiny import tiny_checkpoint
from trtkit.checkpoints.source import find_checkpoint, resolve_checkpoint
from trtkit.config.load import load_config, parse_config
from trtkit.errors import CheckpointError, InputError, MissingToolError
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.run import BuildOptions, build

LIMITS = {"limits": {"max_batch_size": 1, "max_input_len": 32, "max_output_len": 8}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


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

    class Api:
        def model_info(self, name: str, *, revision: str | None, files_metadata: bool, timeout: float) -> Any:
            assert files_metadata, "without it the hub tells names only"
            return SimpleNamespace(sha=COMMIT, siblings=[sibling(file) for file in sorted(source.iterdir())])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return fetched


def sibling(file: Path) -> Any:
    """A file as the hub lists it: the digest of its content, for large files under lfs."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lfs = SimpleNamespace(sha256=digest) if file.suffix == ".safetensors" else None
    return SimpleNamespace(rfilename=file.name, size=file.stat().st_size, blob_id=digest[:40], lfs=lfs)


def test_a_build_fetches_the_weights(hub: list[str], tmp_path: Path) -> None:
    folder = resolve_checkpoint("org/model", tmp_path)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(hub)
    assert find_checkpoint("org/model", tmp_path) == folder


def test_no_weights_are_fetched_for_engines_that_this_machine_cannot_build(hub: list[str], tmp_path: Path) -> None:
    config = parse_config(
        {"name": "x", "backend": "engine", "target": {"checkpoint": "org/model"}, **LIMITS}, where="x"
    )
    with pytest.raises(MissingToolError) as caught:
        build(config, BuildOptions(cache=tmp_path, where="x", out=tmp_path / "build"))
    assert caught.value.code == "GPU-MISSING"
    assert "config.json" in hub and "model.safetensors" not in hub
    impossible = config.model_copy(update={"tensorrt_llm": "9.9"})
    with pytest.raises(InputError, match="is not a release trtkit knows"):
        build(impossible, BuildOptions(cache=tmp_path, where="x", out=tmp_path / "build"))


@pytest.mark.parametrize("revision", ["refs/pr/1", "../../../elsewhere"])
def test_a_revision_stays_inside_the_cache(revision: str, hub: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    folder = resolve_checkpoint("org/model", cache, revision)
    assert folder.parent == cache / "checkpoints" and hub
    assert find_checkpoint("org/model", cache, revision) == folder
    assert find_checkpoint("org/model", cache) is None


def test_a_disk_that_fills_up_while_a_checkpoint_is_fetched_is_no_fault_of_the_network(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(MissingToolError, match="No space left on device") as caught:
        resolve_checkpoint("org/model", tmp_path)
    assert caught.value.code == "DISK" and "org--model" in str(caught.value.where)


def test_pickles_are_fetched_only_when_they_are_allowed_and_all_there_is(hub: list[str], tmp_path: Path) -> None:
    (tmp_path / "hub" / "pytorch_model.bin").write_bytes(b"pickle")
    assert not list(resolve_checkpoint("org/model", tmp_path / "a", pickles=True).glob("*.bin"))
    (tmp_path / "hub" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="--allow-pickle") as caught:
        resolve_checkpoint("org/model", tmp_path / "b")
    assert caught.value.code == "CKPT-PICKLE"
    assert find_checkpoint("org/model", tmp_path / "b") is None, "what is no checkpoint is not taken for one later"
    assert (resolve_checkpoint("org/model", tmp_path / "b", pickles=True) / "pytorch_model.bin").is_file()


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


def test_a_look_ahead_keeps_the_hubs_digest_of_the_weights(hub: list[str], tmp_path: Path) -> None:
    folder = resolve_checkpoint("org/model", tmp_path, weights=False)
    document = json.loads((folder / "hub_files.json").read_text())
    weights = (tmp_path / "hub" / "model.safetensors").read_bytes()
    assert document["revision"] == COMMIT
    assert document["files"]["model.safetensors"] == {
        "bytes": len(weights),
        "digest": hashlib.sha256(weights).hexdigest(),
    }


def llmapi_build(folder: Path, **target: Any) -> tuple[Any, dict[str, Any]]:
    """A build for the LLM API of org/model, and its model.yaml."""
    document = {
        "name": "remote",
        "backend": "llmapi",
        "gpu": {"name": "h100-sxm-80gb", "count": 1},
        "target": {"checkpoint": "org/model", "dtype": "bfloat16", **target},
        "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 32},
    }
    (folder / "remote.yaml").write_text(yaml.safe_dump(document))
    options = BuildOptions(cache=folder, where="remote.yaml", out=folder / "build")
    report = build(load_config(folder / "remote.yaml"), options)
    return report, yaml.safe_load((report.out / "model_repository/tensorrt_llm/1/model.yaml").read_text())


def test_weights_that_only_the_server_reads_are_not_fetched_and_pinned_to_their_commit(
    hub: list[str], tmp_path: Path
) -> None:
    report, model = llmapi_build(tmp_path)
    assert hub and not [name for name in hub if "safetensors" in name]
    assert (model["model"], model["revision"]) == ("org/model", COMMIT)
    manifest = json.loads(report.manifest.read_text())
    assert "hub_files.json" in manifest["inputs"]["target"]["files"]
    again, _ = llmapi_build(tmp_path)
    assert all(stage.skipped for stage in again.stages if stage.stage != "check")


def test_other_weights_on_the_hub_are_another_build(hub: list[str], tmp_path: Path) -> None:
    llmapi_build(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    shutil.rmtree(tmp_path / "described", ignore_errors=True)
    weights = tmp_path / "hub" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    before = json.loads((tmp_path / "build" / "manifest.json").read_text())["inputs"]["target"]["digest"]
    report, _ = llmapi_build(tmp_path)
    assert json.loads(report.manifest.read_text())["inputs"]["target"]["digest"] != before


def test_a_hub_out_of_reach_is_an_error_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client against a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = partial(huggingface_hub.HfApi, endpoint=f"http://127.0.0.1:{port}")
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    with pytest.raises(CheckpointError, match="cannot be fetched from the hub") as caught:
        resolve_checkpoint("org/model", tmp_path, weights=False)
    assert caught.value.code == "HUB"


def test_the_server_reads_the_weights_that_are_here_already(hub: list[str], tmp_path: Path) -> None:
    (tmp_path / "hub" / "model.safetensors.index.json").unlink()  # it lists nothing
    folder = resolve_checkpoint("org/model", tmp_path)
    _, model = llmapi_build(tmp_path)
    assert (model["model"], "revision" in model) == (str(folder), False)
