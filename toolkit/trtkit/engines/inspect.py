"""Reads what an engine directory says of itself. Knows config.json of an engine, never opens the engine file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError

REFERENCE_KEY = "trtkit_reference"


@dataclass(frozen=True)
class EngineInfo:
    """One engine directory.

    checkpoint is set for a reference engine: the TensorRT-LLM checkpoint that is executed.
    vocab_size is the model's, padded or not as the checkpoint says.
    """

    folder: Path
    version: str
    architecture: str
    dtype: str
    vocab_size: int
    world_size: int
    spec: EngineSpec
    checkpoint: Path | None


def read_engine(folder: Path) -> EngineInfo:
    """Parse `folder`/config.json. Raises InputError when it is missing or not an engine's."""
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _parse(folder, document)
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no engine: config.json is missing",
            "give an engine directory, or run trtkit build again",
            code="ENGINE-MISSING",
            where=str(path),
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"not an engine's config.json: {type(error).__name__} {error}",
            "build the engine again",
            code="ENGINE-CONFIG",
            where=str(path),
        ) from None


def _parse(folder: Path, document: dict[str, Any]) -> EngineInfo:
    model, build = document["pretrained_config"], document["build_config"]
    reference = document.get(REFERENCE_KEY)
    max_draft_len = build["max_draft_len"]
    return EngineInfo(
        folder=folder,
        version=document["version"],
        architecture=model["architecture"],
        dtype=model["dtype"],
        vocab_size=model["vocab_size"],
        world_size=model["mapping"]["world_size"],
        spec=EngineSpec(
            max_batch_size=build["max_batch_size"],
            max_input_len=build["max_input_len"],
            max_seq_len=build["max_seq_len"] - max_draft_len,
            max_draft_len=max_draft_len,
            block_size=build["plugin_config"]["tokens_per_block"],
            kv_dtype=(model.get("quantization") or {}).get("kv_cache_quant_algo") or "auto",
        ),
        checkpoint=(folder / reference["checkpoint"]).resolve() if reference else None,
    )
