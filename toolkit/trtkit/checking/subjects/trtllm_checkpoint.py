"""TrtllmCheckpoint: what a TensorRT-LLM checkpoint directory holds. Reads config.json, headers and scales only."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checking.scales import ScaleAudit, audit_scales, read_scales
from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.errors import CheckpointError

_REQUIRED = ("architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads")
_KV_SCALE = re.compile(r"^transformer\.layers\.(\d+)\.attention\.(?:kv|k|v)_cache_scaling_factor$")


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """One directory.

    ranks maps each rank whose file is there to its tensors by name. kv_scales maps a layer, counted over all pipeline
    stages, to its scales.
    """

    folder: Path
    config: Mapping[str, Any]
    ranks: Mapping[int, Mapping[str, StoredTensor]]
    kv_scales: Mapping[int, tuple[float, ...]]

    @property
    def tensor_parallel(self) -> int:
        """Ranks of one pipeline stage."""
        return int(self._mapping.get("tp_size", 1))

    @property
    def pipeline_parallel(self) -> int:
        """Pipeline stages."""
        return int(self._mapping.get("pp_size", 1))

    @property
    def world_size(self) -> int:
        """Rank files that config.json announces."""
        return int(self._mapping.get("world_size", self.tensor_parallel * self.pipeline_parallel))

    @property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return int(self.config["num_hidden_layers"])

    @property
    def kv_algorithm(self) -> str | None:
        """kv_cache_quant_algo: "FP8", "INT8" or None."""
        return (self.config.get("quantization") or {}).get("kv_cache_quant_algo")

    @property
    def quant_algorithm(self) -> str | None:
        """quant_algo of the linear layers, None for unquantised ones."""
        return (self.config.get("quantization") or {}).get("quant_algo")

    @property
    def scale_audit(self) -> ScaleAudit:
        """The verdict over the KV scales."""
        return audit_scales(self.kv_scales, self.num_layers)

    @property
    def _mapping(self) -> Mapping[str, Any]:
        return self.config.get("mapping") or {}


def read_trtllm_checkpoint(folder: Path) -> TrtllmCheckpoint:
    """Read a directory.

    Raises CheckpointError TRT-CONFIG, and what read_header and read_draft_vocabulary raise for a damaged file.
    """
    config = _read_config(folder / "config.json")
    if config.get("vocab_size"):
        read_draft_vocabulary(folder, int(config["vocab_size"]))
    found = {int(path.stem.removeprefix("rank")): path for path in folder.glob("rank[0-9]*.safetensors")}
    ranks = {rank: {tensor.name: tensor for tensor in read_header(found[rank])} for rank in sorted(found)}
    draft = TrtllmCheckpoint(folder, config, ranks, {})
    return TrtllmCheckpoint(folder, config, ranks, _kv_scales(draft))


def stage_layers(num_layers: int, stages: int, stage: int) -> range:
    """Layers of a pipeline stage, as torch.tensor_split divides them."""
    bounds = [0]
    for index in range(stages):
        bounds.append(bounds[-1] + num_layers // stages + (index < num_layers % stages))
    return range(bounds[stage], bounds[stage + 1])


def _read_config(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot be read as JSON: {type(error).__name__}",
            "give the directory of a TensorRT-LLM checkpoint, or convert again",
            code="TRT-CONFIG",
            where=str(path),
        ) from None
    missing = [key for key in _REQUIRED if not isinstance(document, dict) or document.get(key) is None]
    if missing:
        raise CheckpointError(
            f"lacks {', '.join(missing)}", "convert the checkpoint again", code="TRT-CONFIG", where=str(path)
        )
    return dict(document)


def _kv_scales(checkpoint: TrtllmCheckpoint) -> dict[int, tuple[float, ...]]:
    """The scales of the first tensor rank of every stage; they are the same on all."""
    scales: dict[int, tuple[float, ...]] = {}
    for rank, tensors in checkpoint.ranks.items():
        stage = rank // checkpoint.tensor_parallel
        if rank % checkpoint.tensor_parallel or stage >= checkpoint.pipeline_parallel:
            continue
        first = stage_layers(checkpoint.num_layers, checkpoint.pipeline_parallel, stage).start
        for layer, values in read_scales(tensors.values(), _KV_SCALE).items():
            scales[first + layer] = values
    return scales
