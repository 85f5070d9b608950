"""Where the checkpoints of a build lie, and whether their weights are needed here. Downloads; reads small files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoints.source import find_checkpoint, resolve_checkpoint
from trtkit.config.schema import BuildConfig
from trtkit.findings import Finding
from trtkit.pipeline.request import converts_for_llmapi


@dataclass(frozen=True)
class Sources:
    """Role -> folder; described: those that need no weights, of which config.json and tokenizer suffice."""

    folders: Mapping[str, Path]
    described: frozenset[str]

    def excuse(self, findings: list[Finding]) -> list[Finding]:
        """Without those that say of a described checkpoint that there is no weight file at all."""
        bare = {str(self.folders[role]) for role in self.described if not has_weights(self.folders[role])}
        return [finding for finding in findings if finding.code != "CKPT-MISSING" or finding.where not in bare]


def resolve_sources(
    config: BuildConfig, cache: Path, calibrations: Mapping[str, Path], *, without_weights: bool
) -> Sources:
    """Find or fetch every checkpoint. config.backend is resolved.

    without_weights: none is needed. The weights of a hub id that the LLM API reads as it is are not needed either: the
    server fetches them. Raises what resolve_checkpoint raises.
    """
    described = {
        role for role in config.models if without_weights or _is_read_from_hub(role, config, cache, calibrations)
    }
    folders = {
        role: resolve_checkpoint(model.checkpoint, cache, model.revision, weights=role not in described)
        for role, model in config.models.items()
    }
    return Sources(folders, frozenset(described))


def _is_read_from_hub(role: str, config: BuildConfig, cache: Path, calibrations: Mapping[str, Path]) -> bool:
    model = config.models[role]
    if config.backend != "llmapi" or find_checkpoint(model.checkpoint, cache, model.revision) is not None:
        return False
    folder = resolve_checkpoint(model.checkpoint, cache, model.revision, weights=False)
    return not converts_for_llmapi(role, config, folder, calibrations)


def has_weights(folder: Path) -> bool:
    """Whether a folder holds safetensors, or an index that names some."""
    return any(folder.glob("*.safetensors*"))
