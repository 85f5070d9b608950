"""Rank files of a TensorRT-LLM checkpoint become whole tensors. Knows names and splits, not what a model does.

Layout: rank = pp_rank * tp + tp_rank; layer numbers in a file count from the first layer of its pipeline stage; the
stages hold as many layers as torch.tensor_split gives them (TensorRT-LLM mapping.py, models/llama/convert.py).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtkit.errors import CheckpointError
from trtkit.reference.model.config import ModelConfig

# Last parts of a name -> the axis along which the ranks of a stage hold parts, or None when each holds the whole.
# attention.qkv is cut into three first (join_qkv), the embedding as config.json says.
_SPLIT: dict[str, int | None] = {
    "attention.dense.weight": 1,
    "attention.dense.bias": None,
    "mlp.fc.weight": 0,
    "mlp.fc.bias": 0,
    "mlp.gate.weight": 0,
    "mlp.gate.bias": 0,
    "mlp.proj.weight": 1,
    "mlp.proj.bias": None,
    "input_layernorm.weight": None,
    "post_layernorm.weight": None,
    "q_layernorm.weight": None,
    "k_layernorm.weight": None,
    "ln_f.weight": None,
    "lm_head.weight": 0,
}
_OVER_VOCABULARY = ("lm_head.weight", "vocab_embedding.weight")


class Shards:
    """All rank files, open; `take` hands each tensor out once, and `refuse_leftovers` proves that none was missed."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._config = config
        self._folder = folder
        self._stack = ExitStack()
        world_size = config.tensor_parallel * config.pipeline_parallel
        self._files = [self._open(folder / f"rank{rank}.safetensors") for rank in range(world_size)]
        self._names = [set(file.keys()) for file in self._files]

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has(self, name: str) -> bool:
        """Some rank holds a tensor of this name."""
        return any(name in names for names in self._names)

    def stages(self) -> Iterator[tuple[int, int]]:
        """(pipeline stage, layer number inside it) for every layer in order."""
        layers = torch.arange(self._config.num_layers)
        for stage, part in enumerate(torch.tensor_split(layers, self._config.pipeline_parallel)):
            yield from ((stage, index) for index in range(len(part)))

    def take(self, name: str, shape: tuple[int, ...], stage: int) -> Tensor:
        """The whole tensor `name` of one pipeline stage.

        Raises CheckpointError: REF-TENSOR when it is missing, REF-SHAPE when it is not of `shape`.
        """
        first = stage * self._config.tensor_parallel
        parts = [self._read(rank, name) for rank in range(first, first + self._config.tensor_parallel)]
        whole = self._join(name, parts)
        if tuple(whole.shape) != shape:
            raise self._error(f"{name} has the shape {tuple(whole.shape)}, config.json says {shape}", "REF-SHAPE")
        return whole

    def refuse_leftovers(self) -> None:
        """Raise CheckpointError REF-UNUSED when a tensor was never taken: the model would not be the checkpoint's."""
        unused = sorted({name for names in self._names for name in names})
        if unused:
            raise self._error(f"{len(unused)} tensors have no place in the model, first {unused[0]}", "REF-UNUSED")

    def _open(self, path: Path) -> Any:
        try:
            return self._stack.enter_context(safe_open(path, framework="pt"))
        except (FileNotFoundError, SafetensorError) as error:
            raise self._error(f"cannot read {path.name}: {error}", "REF-FILE") from None

    def _read(self, rank: int, name: str) -> Tensor:
        if name not in self._names[rank]:
            raise self._error(f"rank{rank}.safetensors lacks {name}", "REF-TENSOR")
        self._names[rank].discard(name)
        tensor: Tensor = self._files[rank].get_tensor(name)
        return tensor

    def _join(self, name: str, parts: list[Tensor]) -> Tensor:
        if ".qkv." in name:
            return join_qkv(parts, self._config)
        if name.endswith("vocab_embedding.weight"):
            axis = self._config.embedding_split_dim
        else:
            axis = next(axis for ending, axis in _SPLIT.items() if name.endswith(ending))
        whole = parts[0] if axis is None else torch.cat(parts, axis)
        # Vocabulary rows are padded with zeros to a multiple of the ranks.
        return whole[: self._config.vocab_size] if name.endswith(_OVER_VOCABULARY) else whole

    def _error(self, cause: str, code: str) -> CheckpointError:
        return CheckpointError(cause, "convert the checkpoint again", code=code, where=str(self._folder))


def join_qkv(parts: list[Tensor], config: ModelConfig) -> Tensor:
    """[Q ; K ; V] of all heads from the [Q_r ; K_r ; V_r] of each rank.

    With more ranks than key heads every head stands on several neighbouring ranks; the first copy is taken.

    R ranks, P rows of one rank, Q and K rows of all query and key heads.
        parts    R x [P] or [P, hidden_size]
        returns  [Q + 2 * K] or [Q + 2 * K, hidden_size]
    """
    num_ranks = len(parts)
    num_q_rows = config.num_q_heads * config.head_dim // num_ranks
    num_kv_rows = max(config.num_kv_heads // num_ranks, 1) * config.head_dim
    split = [torch.split(part, [num_q_rows, num_kv_rows, num_kv_rows]) for part in parts]
    stride = max(num_ranks // config.num_kv_heads, 1)
    queries = [piece[0] for piece in split]
    keys, values = ([piece[i] for piece in split[::stride]] for i in (1, 2))
    return torch.cat([*queries, *keys, *values])
