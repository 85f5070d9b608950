"""The rank files of a checkpoint, open. Knows where a rank's tensors lie, not how they belong together.

Layout: rank = stage * tp + tensor rank; layer numbers in a file count from the first layer of its pipeline stage; the
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


class RankFiles:
    """Hands every tensor out once, mapped from its file, and `refuse_leftovers` proves that none was missed."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._config = config
        self._folder = folder
        self._stack = ExitStack()
        world_size = config.tensor_parallel * config.pipeline_parallel
        self._files = [self._open(folder / f"rank{rank}.safetensors") for rank in range(world_size)]
        self._names = [set(file.keys()) for file in self._files]

    def __enter__(self) -> "RankFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ranks_of(self, stage: int) -> range:
        """The ranks of one pipeline stage, by tensor rank."""
        width = self._config.tensor_parallel
        return range(stage * width, (stage + 1) * width)

    def stages(self) -> Iterator[tuple[int, int]]:
        """(pipeline stage, layer number inside it) for every layer in order."""
        layers = torch.arange(self._config.num_layers)
        for stage, part in enumerate(torch.tensor_split(layers, self._config.pipeline_parallel)):
            yield from ((stage, index) for index in range(len(part)))

    def has(self, name: str) -> bool:
        """Some rank holds a tensor of this name."""
        return any(name in names for names in self._names)

    def read(self, rank: int, name: str) -> Tensor:
        """One tensor of one rank. Raises CheckpointError REF-TENSOR when it is missing."""
        if name not in self._names[rank]:
            raise self.error(f"rank{rank}.safetensors lacks {name}", "REF-TENSOR")
        self._names[rank].discard(name)
        tensor: Tensor = self._files[rank].get_tensor(name)
        return tensor

    def read_all(self, rank: int, stem: str, endings: tuple[str, ...]) -> dict[str, Tensor]:
        """Those of the tensors `stem`.ending that a rank holds, by ending; the weight is always among them."""
        held = [ending for ending in endings if ending == "weight" or f"{stem}.{ending}" in self._names[rank]]
        return {ending: self.read(rank, f"{stem}.{ending}") for ending in held}

    def refuse_leftovers(self) -> None:
        """Raise CheckpointError REF-UNUSED when a tensor was never taken: the model would not be the checkpoint's."""
        unused = sorted({name for names in self._names for name in names})
        if unused:
            raise self.error(f"{len(unused)} tensors have no place in the model, first {unused[0]}", "REF-UNUSED")

    def error(self, cause: str, code: str) -> CheckpointError:
        """An error about this checkpoint."""
        return CheckpointError(cause, "convert the checkpoint again", code=code, where=str(self._folder))

    def _open(self, path: Path) -> Any:
        try:
            return self._stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise self.error(f"cannot read {path.name}: {error}", "REF-FILE") from None
