"""LayerSource: the weights of one decoder layer at a time, read from the files. Knows names, runs nothing.

Plain reads into fresh tensors rather than memory maps: what is read is resident, and it is freed with the layer.
"""

import os
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.layout import rules_for
from trtkit.conversion.source_check import resolve_names
from trtkit.conversion.source_scales import FP8, read_scales
from trtkit.conversion.weight_maps import WEIGHT_MAPS
from trtkit.errors import CheckpointError

# Names in a checkpoint -> names in transformers' modules, where they differ (Mixtral).
_RENAMED = (
    ("block_sparse_moe.", "mlp."),
    (".w1.weight", ".gate_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
)


class LayerSource:
    """Open files of one checkpoint.

    dtype is that of the tensors handed out; FP8 weights are multiplied out by their scales. Raises CheckpointError as
    the converter does: nothing may be missing, misshapen or left over.
    """

    def __init__(self, folder: Path, spec: ModelSpec, dtype: torch.dtype) -> None:
        self._weights = open_weights(folder)
        self._names = resolve_names(spec, WEIGHT_MAPS[spec.family], self._weights)
        self._scales = read_scales(self._weights, self._weights).weights
        self._prefix = "h." if spec.family == "gpt2" else "model.layers."
        self._dtype = dtype
        self._descriptors = {file: os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in self._weights.files}

    def __enter__(self) -> "LayerSource":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def layer(self, number: int) -> dict[str, Tensor]:
        """Name inside transformers' layer -> tensor."""
        return {name: self.tensor(stored) for name, stored in self.layer_names(number).items()}

    def layer_names(self, number: int) -> dict[str, str]:
        """Name inside transformers' layer -> name in the checkpoint."""
        start = f"{self._prefix}{number}."
        names = {}
        for name, stored in self._names.items():
            if name.startswith(start):
                inside = name.removeprefix(start)
                for old, new in _RENAMED:
                    inside = inside.replace(old, new)
                names[inside] = stored
        return names

    def outside(self, name: str) -> Tensor:
        """A tensor outside the layers, by its name in the weight map (model.embed_tokens.weight, wpe.weight)."""
        return self.tensor(self._names[name])

    def has(self, name: str) -> bool:
        """Whether the weight map reads a tensor of this name."""
        return name in self._names

    def rows(self, name: str, indices: Tensor) -> Tensor:
        """Some rows of a matrix outside the layers: [len(indices), columns]; the rest is not read."""
        stored = self._weights[self._names[name]]
        row_bytes = stored.num_bytes // stored.shape[0]
        out = torch.empty(len(indices), stored.shape[1], dtype=_torch_dtype(stored))
        for position, index in enumerate(indices.tolist()):
            self._read(stored, stored.start + index * row_bytes, _bytes_of(out[position]))
        return self._multiplied_out(stored, out, indices)

    def tensor(self, stored_name: str) -> Tensor:
        """A whole tensor, by its name in the checkpoint."""
        stored = self._weights[stored_name]
        out = torch.empty(stored.shape, dtype=_torch_dtype(stored))
        self._read(stored, stored.start, _bytes_of(out))
        return self._multiplied_out(stored, out, torch.arange(len(out)))

    def _multiplied_out(self, stored: StoredTensor, values: Tensor, rows: Tensor) -> Tensor:
        """Some rows of a tensor times its scale, or times theirs where every row has one."""
        if stored.dtype != FP8:
            return values.to(self._dtype)
        scales = torch.from_numpy(self._scales[stored.name.removesuffix(".weight")])
        if len(scales) not in (1, stored.shape[0]):
            raise CheckpointError(
                f"{stored.name} has {stored.shape[0]} rows and {len(scales)} scales",
                "quantise the checkpoint again",
                code="CKPT-SCALE",
                where=str(stored.file),
            )
        factors = scales if len(scales) == 1 else scales[rows][:, None]
        return (values.float() * factors).to(self._dtype)

    def _read(self, stored: StoredTensor, start: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptors[stored.file], [buffer[done:]], start + done)
            if not count:
                raise CheckpointError(
                    f"{stored.name} ends early: the file became shorter while it was read",
                    "run the command again when nothing writes to the checkpoint",
                    code="CKPT-CHANGED",
                    where=str(stored.file),
                )
            done += count


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _torch_dtype(stored: StoredTensor) -> torch.dtype:
    dtype = getattr(torch, stored.dtype)
    assert isinstance(dtype, torch.dtype), stored.dtype
    return dtype


def linear_modules(folder: Path) -> list[str]:
    """The linear layers whose inputs may be quantised, as the checkpoint names them. Reads headers only."""
    spec = read_model_spec(folder)
    weight_map = WEIGHT_MAPS[spec.family]
    names = resolve_names(spec, weight_map, open_weights(folder))
    patterns = {
        part.source for rule in rules_for(spec, weight_map) if rule.kind in ("linear", "expert") for part in rule.parts
    }
    modules = {stored for name, stored in names.items() if _pattern(name) in {_pattern(p) for p in patterns}}
    return sorted(name.removesuffix(".weight") for name in modules)


def _pattern(name: str) -> str:
    """A name with every number and placeholder as one sign, so that names and patterns compare."""
    return ".".join("#" if part.isdecimal() or part.startswith("{") else part for part in name.split("."))
