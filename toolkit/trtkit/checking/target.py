"""Recognises what `trtkit check` was pointed at, and checks it. Knows kinds of targets, no rules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checking.catalogue import known_codes
from trtkit.checking.config_check import check_config
from trtkit.checking.folder_checks import FOLDER_CHECKS
from trtkit.checking.report import CheckReport, make_report
from trtkit.checkpoints.source import expanded, find_checkpoint
from trtkit.config.load import load_config
from trtkit.errors import InputError
from trtkit.findings import Finding

# What an interrupted build has, and one of a few stages.
_BUILD_FOLDERS = ("checkpoints", "engines")
_CHECKPOINT_FILES = ("config.json", "*.safetensors", "*.bin", "tokenizer*.json")


@dataclass(frozen=True)
class CheckOptions:
    """cache: where hub checkpoints lie. overrides: --set values for a YAML. strict: warnings fail."""

    cache: Path
    overrides: Sequence[str] = ()
    strict: bool = False
    ignore: Sequence[str] = ()


def check_target(target: str, options: CheckOptions) -> CheckReport:
    """Check a YAML, a checkpoint, an engine directory, a repository or a build directory.

    Raises InputError for a target that is none of these, ConfigError for a YAML that is no build config.
    """
    path = expanded(target)
    kind = kind_of(path, options.cache)
    if kind == "YAML":
        findings = _check_yaml(path, options)
    else:
        folder = path if path.exists() else find_checkpoint(target, options.cache)
        assert folder is not None, "kind_of has found it"
        findings = FOLDER_CHECKS[kind](folder)
    return make_report(kind, findings, strict=options.strict, ignore=options.ignore, known=known_codes())


def kind_of(path: Path, cache: Path) -> str:
    """What `path` is: "YAML" or a key of the folder checks. Raises InputError CHECK-TARGET."""
    if path.is_file():
        return "YAML"
    if path.is_dir():
        kind = _kind_of_folder(path)
        if kind is not None:
            return kind
        raise _no_target(path, "is a folder without config.json, config.pbtxt or manifest.json")
    if find_checkpoint(str(path), cache) is not None:
        return "checkpoint"
    raise _no_target(path, "does not exist")


def _kind_of_folder(path: Path) -> str | None:
    if (path / "manifest.json").is_file() or (path / "model_repository").is_dir():
        return "build"
    if any(path.glob("*/config.pbtxt")):
        return "repository"
    config = _read_object(path / "config.json")
    if "build_config" in config or any(path.glob("rank*.engine")):
        return "engine"
    if "architecture" in config or any(path.glob("rank*.safetensors")):
        return "TensorRT-LLM checkpoint"
    if any(any(path.glob(pattern)) for pattern in _CHECKPOINT_FILES):
        return "checkpoint"
    return "build" if any((path / name).is_dir() for name in _BUILD_FOLDERS) else None


def _check_yaml(path: Path, options: CheckOptions) -> list[Finding]:
    config = load_config(path, options.overrides)
    found = {
        role: find_checkpoint(model.checkpoint, options.cache, model.revision) for role, model in config.models.items()
    }
    folders = {role: folder for role, folder in found.items() if folder is not None}
    return check_config(config, folders, where=str(path))


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object, or {} when there is none: the check of the recognised kind reports what is wrong with it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _no_target(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} {what}",
        "give a build YAML, a checkpoint, an engine directory, a model repository or a build directory",
        code="CHECK-TARGET",
    )
