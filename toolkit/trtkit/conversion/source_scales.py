"""SourceScales: the scale tensors that a quantised Hugging Face checkpoint keeps beside its weights. Converts nothing.

Two writers are known: ModelOpt (scales below each projection, k_scale below k_proj) and compressed-tensors (k_scale
beside the projections). Every scale is a multiplier: value = stored * scale.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.conversion.casting import to_float32
from trtkit.errors import CheckpointError

FP8 = "float8_e4m3fn"
_WEIGHT, _INPUT = ".weight_scale", ".input_scale"
_KV = re.compile(r"\blayers\.(\d+)\.self_attn\.(?:[kv]_proj\.)?(?:[kv]_scale|kv_scale|output_scale)$")
# Tensors of formats that are not carried over, and what to do instead.
_FOREIGN = (".weight_packed", ".weight_scale_inv", ".weight_scale_2", ".qweight", ".scales", ".absmax")


class ReadsTensors(Protocol):
    """What SourceScales reads values with: an open checkpoint."""

    def array(self, name: str) -> NDArray[Any]:
        """The bits of a tensor."""
        ...


@dataclass(frozen=True)
class SourceScales:
    """Scales by what they belong to. weights, inputs: module -> values ([1], or [outputs] per channel).

    kv: layer -> the larger of its scales. names: every scale tensor by group, for saying which are left behind.
    """

    weights: Mapping[str, NDArray[np.float32]]
    inputs: Mapping[str, float]
    kv: Mapping[int, float]
    names: Mapping[str, tuple[str, ...]]

    @property
    def per_channel(self) -> bool:
        """Whether weights have one scale per output row."""
        return any(values.size > 1 for values in self.weights.values())


def is_scale(name: str, weights: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor is the scale of something else in the checkpoint."""
    module = name.rsplit(".", 1)[0]
    return bool(_KV.search(name)) or (name.endswith((_WEIGHT, _INPUT)) and f"{module}.weight" in weights)


def refuse_foreign_formats(weights: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError CKPT-QUANT for packed 4-bit, block-scaled and other formats that are not carried over."""
    name = next((name for name in weights if name.endswith(_FOREIGN)), None)
    if name is not None:
        raise CheckpointError(
            f"{name}: weights are stored in a quantised format other than FP8 with a scale per tensor or per channel",
            "convert the unquantised checkpoint with --quantization, or serve this one with backend: llmapi",
            code="CKPT-QUANT",
            where=str(weights[name].file),
        )


def read_scales(weights: Mapping[str, StoredTensor], reader: ReadsTensors) -> SourceScales:
    """Collect the scales. Raises CheckpointError CKPT-SCALE for one that is not finite and positive."""
    found = [name for name in weights if is_scale(name, weights)]
    values = {name: _values(name, weights[name], reader) for name in found}
    of_weights = tuple(name for name in found if name.endswith(_WEIGHT))
    of_inputs = tuple(name for name in found if name.endswith(_INPUT))
    of_kv = tuple(name for name in found if _KV.search(name))
    kv: dict[int, float] = {}
    for name in of_kv:
        match = _KV.search(name)
        assert match is not None
        kv[int(match[1])] = max(kv.get(int(match[1]), 0.0), float(values[name].max()))
    return SourceScales(
        weights={name.removesuffix(_WEIGHT): values[name] for name in of_weights},
        inputs={name.removesuffix(_INPUT): float(values[name].max()) for name in of_inputs},
        kv=kv,
        names={"weight": of_weights, "input": of_inputs, "kv": of_kv},
    )


def _values(name: str, tensor: StoredTensor, reader: ReadsTensors) -> NDArray[np.float32]:
    """The scale as float32 [1] or [outputs]."""
    values = to_float32(reader.array(name).reshape(-1), tensor.dtype)
    if not values.size or not np.isfinite(values).all() or not (values > 0).all():
        raise _bad_scale(name, tensor.file)
    return values.copy()


def _bad_scale(name: str, file: Path) -> CheckpointError:
    return CheckpointError(
        f"{name} is not a finite scale above 0", "quantise the checkpoint again", code="CKPT-SCALE", where=str(file)
    )
