"""TrtllmCheckpoint: what a TensorRT-LLM checkpoint directory holds. Reads config.json, headers and scales only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trtkit.checking.scales import LAYER_NUMBER, ScaleAudit, audit_scales, read_scales
from trtkit.checking.subjects.trtllm_config import TrtllmConfig, as_trt_config, read_trtllm_config
from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.errors import CheckpointError

_RANK_FILE = re.compile(r"rank(0|[1-9][0-9]{0,8})\.safetensors")
_KV_SCALE = re.compile(rf"^transformer\.layers\.{LAYER_NUMBER}\.attention\.(?:kv|k|v)_cache_scaling_factor$")
# More layers than any model has: a config that announces more than this and than the files have tensors is damaged.
_PLAUSIBLE_LAYERS = 1024


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """One directory.

    ranks maps each rank whose file is there to its tensors by name. kv_scales maps a layer, counted over all pipeline
    stages, to its scales.
    """

    folder: Path
    config: TrtllmConfig
    ranks: Mapping[int, Mapping[str, StoredTensor]]
    kv_scales: Mapping[int, tuple[float, ...]]

    @property
    def world_size(self) -> int:
        """Rank files that config.json announces."""
        return self.config.split.num_ranks

    @property
    def num_layers(self) -> int:
        """Layers of the whole model."""
        return self.config.num_layers

    @property
    def kv_algorithm(self) -> str | None:
        """kv_cache_quant_algo: "FP8", "INT8" or None."""
        return self.config.kv_algorithm

    @property
    def quant_algorithm(self) -> str | None:
        """quant_algo of the linear layers, None for unquantised ones."""
        return self.config.quant_algorithm

    @cached_property
    def scale_audit(self) -> ScaleAudit:
        """The verdict over the KV scales."""
        return audit_scales(self.kv_scales, self.num_layers)


def read_trtllm_checkpoint(folder: Path) -> TrtllmCheckpoint:
    """Read a directory.

    Raises CheckpointError TRT-CONFIG, and what read_header and read_draft_vocabulary raise for a damaged file.
    """
    config = read_trtllm_config(folder / "config.json")
    if config.vocab_size is not None:
        read_draft_vocabulary(folder, config.vocab_size)
    matches = [(_RANK_FILE.fullmatch(path.name), path) for path in folder.iterdir()]
    found = {int(match[1]): path for match, path in matches if match is not None}
    ranks = {rank: {tensor.name: tensor for tensor in read_header(found[rank])} for rank in sorted(found)}
    _refuse_implausible(config, sum(map(len, ranks.values())), folder)
    return TrtllmCheckpoint(folder, config, ranks, _kv_scales(config, ranks))


def _refuse_implausible(config: TrtllmConfig, num_tensors: int, folder: Path) -> None:
    """A layer has tensors, so the files bound the layers; what is above that would be counted for hours."""
    if config.num_layers > max(_PLAUSIBLE_LAYERS, num_tensors):
        with as_trt_config():
            raise CheckpointError(
                f"announces {config.num_layers} layers, and the rank files hold {num_tensors} tensors",
                "",
                where=str(folder / "config.json"),
            )


def _kv_scales(config: TrtllmConfig, ranks: Mapping[int, Mapping[str, StoredTensor]]) -> dict[int, tuple[float, ...]]:
    """The scales of the first tensor rank of every stage; they are the same on all. A layer with a scale for keys or
    values alone has none: TensorRT-LLM wants one for both, or one for each.
    """
    scales: dict[int, tuple[float, ...]] = {}
    for rank, tensors in ranks.items():
        if rank % config.split.tensor or rank >= config.split.num_ranks:
            continue
        first = config.split.layers(rank, config.num_layers).start
        for layer, values in read_scales(tensors.values(), _KV_SCALE).items():
            if _serves_both(tensors, layer):
                scales[first + layer] = values
    return scales


def _serves_both(tensors: Mapping[str, StoredTensor], layer: int) -> bool:
    shared, keys, values = (
        f"transformer.layers.{layer}.attention.{half}_cache_scaling_factor" in tensors for half in ("kv", "k", "v")
    )
    return shared or (keys and values)
