"""Reads what an engine directory says of itself. Knows config.json of an engine, never opens the engine file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtkit.engines.quant_algo import kv_dtype_of, quantization_of
from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError

REFERENCE_KEY = "trtkit_reference"


@dataclass(frozen=True)
class EngineInfo:
    """One engine directory.

    checkpoint is set for a reference engine: the TensorRT-LLM checkpoint that is executed.
    vocab_size is the model's, padded or not as the checkpoint says. paged_context_fmha is what was built, which the
    runtime needs for block reuse; spec holds what was asked for, as far as config.json tells. rank_files are the
    names of the engine files, one for each rank of a complete engine, none for a reference engine.
    """

    folder: Path
    version: str
    architecture: str
    dtype: str
    vocab_size: int
    world_size: int
    spec: EngineSpec
    checkpoint: Path | None
    paged_context_fmha: bool = True
    rank_files: tuple[str, ...] = field(default=())


def read_engine(folder: Path) -> EngineInfo:
    """Parse `folder`/config.json. Raises InputError when it is missing or not an engine's."""
    path = folder / "config.json"
    try:
        return _parse(folder, read_engine_config(folder))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _not_an_engine(path, error) from None


def read_engine_config(folder: Path) -> dict[str, Any]:
    """The document itself. Raises InputError when it is missing or no JSON object."""
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder} holds no engine: config.json is missing",
            "give an engine directory, or run trtkit build again",
            code="ENGINE-MISSING",
            where=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise _not_an_engine(path, error) from None
    if not isinstance(document, dict):
        raise _not_an_engine(path, TypeError("no JSON object"))
    return document


def check_rank_files(info: EngineInfo) -> None:
    """Raise InputError when engine files of a TensorRT-LLM engine are missing; a reference engine has none."""
    wanted = [f"rank{rank}.engine" for rank in range(info.world_size)]
    missing = [name for name in wanted if name not in info.rank_files]
    if info.checkpoint is None and missing:
        raise InputError(
            f"{len(missing)} of {info.world_size} engine files are missing: {', '.join(missing)}",
            "build the engine again; copy the whole directory when moving it",
            code="ENGINE-RANKS",
            where=str(info.folder),
        )


def _parse(folder: Path, document: dict[str, Any]) -> EngineInfo:
    model, build = document["pretrained_config"], document["build_config"]
    plugins = build["plugin_config"]
    reference = document.get(REFERENCE_KEY)
    quantization = model.get("quantization") or {}
    max_draft_len = _count(build, "max_draft_len")
    paged = bool(plugins["use_paged_context_fmha"])
    return EngineInfo(
        folder=folder,
        version=_text(document, "version"),
        architecture=_text(model, "architecture"),
        dtype=_text(model, "dtype"),
        vocab_size=_count(model, "vocab_size"),
        world_size=_count(model["mapping"], "world_size"),
        spec=EngineSpec(
            max_batch_size=_count(build, "max_batch_size"),
            max_input_len=_count(build, "max_input_len"),
            max_seq_len=_count(build, "max_seq_len") - max_draft_len,
            max_draft_len=max_draft_len,
            block_size=_count(plugins, "tokens_per_block"),
            kv_dtype=kv_dtype_of(quantization.get("kv_cache_quant_algo")),
            quantization=quantization_of(quantization.get("quant_algo")),
            reuse=paged,
            attention_sinks=bool(plugins.get("streamingllm", False)),
            speculates=max_draft_len > 0,
            generation_logits=bool(build.get("gather_generation_logits", False)),
        ),
        checkpoint=(folder / reference["checkpoint"]).resolve() if reference else None,
        paged_context_fmha=paged,
        rank_files=tuple(sorted(path.name for path in folder.glob("rank*.engine"))),
    )


def _text(section: Mapping[str, Any], key: str) -> str:
    value = section[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} should be a text, not {value!r}")
    return value


def _count(section: Mapping[str, Any], key: str) -> int:
    value = section[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise TypeError(f"{key} should be a number of things, not {value!r}")
    return value


def _not_an_engine(path: Path, error: Exception) -> InputError:
    return InputError(
        f"not an engine's config.json: {type(error).__name__} {error}",
        "build the engine again",
        code="ENGINE-CONFIG",
        where=str(path),
    )
