"""EngineFolder: everything a built engine's config.json says that a deployment depends on. Opens no engine file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.engines.inspect import EngineInfo, read_engine

_DRAFT_TOKENS_EXTERNAL = 2


@dataclass(frozen=True)
class EngineFolder:
    """One engine directory: EngineInfo, the raw sections of config.json, the rank files that are there."""

    info: EngineInfo
    build: Mapping[str, Any]
    model: Mapping[str, Any]
    ranks: frozenset[int]

    @property
    def folder(self) -> Path:
        """The directory."""
        return self.info.folder

    @property
    def is_reference(self) -> bool:
        """Whether trtkit's own engine executes it; then there are no rank files."""
        return self.info.checkpoint is not None

    @property
    def max_draft_len(self) -> int:
        """Draft tokens that one request may bring."""
        return int(self.build.get("max_draft_len") or 0)

    @property
    def verifies_drafts(self) -> bool:
        """Whether it was built as the target of a draft-target pair.

        The mode is written as a number or by name, depending on the release; reference engines leave it out.
        """
        if self.is_reference:
            return self.max_draft_len > 0
        mode = self.build.get("speculative_decoding_mode")
        named = isinstance(mode, str) and "DRAFT_TOKENS_EXTERNAL" in mode.upper()
        return self.max_draft_len > 0 and (mode == _DRAFT_TOKENS_EXTERNAL or named)

    @property
    def paged_context_fmha(self) -> bool:
        """Whether KV blocks can be reused."""
        return bool(self.plugins.get("use_paged_context_fmha", False))

    @property
    def streamingllm(self) -> bool:
        """Whether the engine keeps attention sinks."""
        return bool(self.plugins.get("streamingllm", False))

    @property
    def plugins(self) -> Mapping[str, Any]:
        """plugin_config."""
        return self.build.get("plugin_config") or {}

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The quantization section of the model."""
        return self.model.get("quantization") or {}


def read_engine_folder(folder: Path) -> EngineFolder:
    """Read an engine directory. Raises InputError ENGINE-MISSING or ENGINE-CONFIG."""
    info = read_engine(folder)
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ranks = {path.stem.removeprefix("rank") for path in folder.glob("rank*.engine")}
    return EngineFolder(
        info=info,
        build=document["build_config"],
        model=document["pretrained_config"],
        ranks=frozenset(int(rank) for rank in ranks if rank.isdigit()),
    )
