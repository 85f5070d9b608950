"""Shards: whole tensors and linear layers out of the rank files. Knows cuts and storage, not what a model does."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trtkit.errors import CheckpointError
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.joins import Cut, rows_joiner
from trtkit.reference.model.linear_weight import LinearWeight, joined_by_columns, joined_by_rows
from trtkit.reference.model.rank_files import RankFiles
from trtkit.reference.model.stored_linear import ENDINGS, PLAIN_DTYPES, Stored, decode

Shape = tuple[int, ...]
# Of the tensors of stacked experts, those that all of them share.
_SHARED_BY_EXPERTS = ("activation_scaling_factor", "prequant_scaling_factor")


class Shards:
    """The tensors of one checkpoint, joined over its ranks; every method takes what it returns out of the files.

    All methods raise CheckpointError: REF-TENSOR when a tensor is missing or of another dtype, REF-SHAPE when it is not
    of the shape, REF-UNSUPPORTED when ranks are quantised so that they make no one layer.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.files = RankFiles(folder, config)
        self._config = config
        self._dtype: torch.dtype = getattr(torch, config.dtype)

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *_: object) -> None:
        self.files.__exit__(None)

    def take(self, name: str, shape: Shape, stage: int, cut: Cut = "whole") -> Tensor:
        """The whole tensor `name` of one pipeline stage."""
        parts = [self.files.read(rank, name) for rank in self.files.ranks_of(stage)]
        odd = next((part.dtype for part in parts if part.dtype not in PLAIN_DTYPES), None)
        if odd is not None:
            raise self.files.error(f"{name} is stored as {str(odd).removeprefix('torch.')}", "REF-TENSOR")
        try:
            whole = torch.cat(parts, 1) if cut == "columns" else rows_joiner(cut, self._config)(parts)
        except (RuntimeError, IndexError) as error:
            raise self._shape_error(name, [part.shape for part in parts], shape) from error
        return self._checked(name, whole, shape)

    def linear(self, stem: str, shape: Shape, stage: int, cut: Cut) -> list[LinearWeight]:
        """The linear layer `stem`.weight with its scales: one weight, or several whose outputs add up."""
        parts = [self._decode(stem, self.files.read_all(rank, stem, ENDINGS)) for rank in self.files.ranks_of(stage)]
        return self._join(stem, parts, shape, cut)

    def experts(self, stem: str, shape: Shape, stage: int, cut: Cut) -> list[list[LinearWeight]]:
        """The linear layers of all experts, which are stacked in `stem`.weight.

        Ranks that differ in tensor rank modulo the expert parallelism hold different experts; the others cut them.
        """
        moe, width = self._config.moe, self._config.expert_parallel
        assert moe is not None, "a dense model has no experts"
        held = [self.files.read_all(rank, stem, ENDINGS) for rank in self.files.ranks_of(stage)]
        per_group = moe.num_experts // width
        layers = []
        for expert in range(moe.num_experts):
            members = held[expert // per_group :: width]
            parts = [self._decode(stem, _of_expert(part, expert % per_group), is_expert=True) for part in members]
            layers.append(self._join(stem, parts, shape, cut))
        return layers

    def _decode(self, stem: str, tensors: Mapping[str, Tensor], *, is_expert: bool = False) -> LinearWeight:
        try:
            return decode(Stored(tensors, self._config.quantization, self._dtype, is_expert))
        except KeyError as missing:
            raise self.files.error(f"the files lack {stem}.{missing.args[0]}", "REF-TENSOR") from None
        except ValueError as error:
            raise self.files.error(f"{stem}.weight cannot be read: {error}", "REF-UNSUPPORTED") from None
        except (RuntimeError, IndexError, TypeError) as error:
            raise self.files.error(f"{stem}.weight and its scales do not fit: {error}", "REF-SHAPE") from error

    def _join(self, stem: str, parts: Sequence[LinearWeight], shape: Shape, cut: Cut) -> list[LinearWeight]:
        name = f"{stem}.weight"
        try:
            if cut == "columns":
                joined = joined_by_columns(parts)
                columns = torch.Size((shape[0], sum(part.weight.shape[1] for part in joined)))
                if columns != shape:
                    raise self._shape_error(name, [columns], shape)
                return joined
            whole = joined_by_rows(parts, rows_joiner(cut, self._config))
        except (RuntimeError, IndexError) as error:
            raise self._shape_error(name, [part.weight.shape for part in parts], shape) from error
        if whole is None:
            raise self.files.error(f"the ranks round the input of {stem} differently", "REF-UNSUPPORTED")
        self._checked(name, whole.weight, shape)
        return [whole]

    def _checked(self, name: str, tensor: Tensor, shape: Shape) -> Tensor:
        if tuple(tensor.shape) != shape:
            raise self._shape_error(name, [tensor.shape], shape)
        return tensor

    def _shape_error(self, name: str, held: Sequence[torch.Size], shape: Shape) -> CheckpointError:
        """held: by rank, or of the whole."""
        shapes = " and ".join(str(tuple(each)) for each in held)
        which = "has the shape" if len(held) == 1 else "has on its ranks the shapes"
        return self.files.error(f"{name} {which} {shapes}, config.json says {shape}", "REF-SHAPE")


def _of_expert(stacked: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    return {ending: tensor if ending in _SHARED_BY_EXPERTS else tensor[number] for ending, tensor in stacked.items()}
