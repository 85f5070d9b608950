"""SourceScales: the scale tensors that a quantised Hugging Face checkpoint keeps beside its weights. Converts nothing.

Every scale is a multiplier: value = stored * scale. Spellings of a layer's KV scales, below self_attn: k_scale and
v_scale (compressed-tensors), attn.k_scale (vLLM's own), k_proj.k_scale and qkv_proj.k_scale (ModelOpt),
k_proj.output_scale (older compressed-tensors), kv_scale for both (AutoFP8, which also says act_scale for input_scale).
Scales of queries and probabilities have no place in a TensorRT-LLM checkpoint.
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
from trtkit.conversion.static_scale import static_scale
from trtkit.errors import CheckpointError

FP8 = "float8_e4m3fn"
_WEIGHT = ".weight_scale"
_KV = re.compile(
    r"\blayers\.(\d+)\.self_attn\.(?:[kv]_proj\.output_scale|(?:(?:attn|[kv]_proj|qkv_proj)\.)?(?:kv|k|v)_scale)$"
)
_OTHER = re.compile(r"\blayers\.\d+\.self_attn\.(?:\w+\.)?(?:q_scale|prob_scale|prob_output_scale)$|\.output_scale$")
_ZERO_POINT = "_zero_point"
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

    kv: layer -> the largest of its scales. names: every scale tensor by group ("weight", "input", "kv", "other"), for
    saying which are left behind.
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
    """Whether a tensor is the scale, or zero point, of something else in the checkpoint."""
    return _group_of(name, weights) is not None


def _group_of(name: str, weights: Mapping[str, StoredTensor]) -> str | None:
    """The group of a scale: "weight", "input", "kv", "other" or "zero point"; None for what is none."""
    if _KV.search(name):
        return "kv"
    if _OTHER.search(name):
        return "other"
    module, _, end = name.rpartition(".")
    if f"{module}.weight" in weights and end in ("weight_scale", "input_scale", "act_scale"):
        return "weight" if end == "weight_scale" else "input"
    return "zero point" if end.endswith(_ZERO_POINT) else None


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
    """Collect the scales. Raises CheckpointError CKPT-SCALE for one that is not finite and positive, or whose
    reciprocal an engine would need and float32 does not have, CKPT-QUANT for a zero point other than zero.
    """
    names: dict[str, list[str]] = {"weight": [], "input": [], "kv": [], "other": [], "zero point": []}
    for name in weights:
        group = _group_of(name, weights)
        if group is not None:
            names[group].append(name)
    for name in names.pop("zero point"):
        _refuse_zero_point(name, weights[name], reader)
    values = {name: _values(name, weights[name], reader) for group in names.values() for name in group}
    for name in (*names["kv"], *names["input"]):
        if static_scale(float(values[name].max()), 1.0) is None:
            raise _bad_scale(name, weights[name].file)
    kv: dict[int, float] = {}
    for name in names["kv"]:
        match = _KV.search(name)
        assert match is not None
        kv[int(match[1])] = max(kv.get(int(match[1]), 0.0), float(values[name].max()))
    return SourceScales(
        weights={name.removesuffix(_WEIGHT): values[name] for name in names["weight"]},
        inputs={name.rpartition(".")[0]: float(values[name].max()) for name in names["input"]},
        kv=kv,
        names={group: tuple(found) for group, found in names.items()},
    )


def _refuse_zero_point(name: str, tensor: StoredTensor, reader: ReadsTensors) -> None:
    """Symmetric formats may write zero points that are zero; FP8 in TensorRT-LLM has no other."""
    if reader.array(name).any():
        raise CheckpointError(
            f"{name} is not zero: asymmetric quantisation is not carried over",
            "quantise the checkpoint symmetrically, or convert the unquantised one",
            code="CKPT-QUANT",
            where=str(tensor.file),
        )


def _values(name: str, tensor: StoredTensor, reader: ReadsTensors) -> NDArray[np.float32]:
    """The scale as float32 [1] or [outputs]."""
    values = to_float32(reader.array(name).reshape(-1), tensor.dtype)
    if not values.size or not np.isfinite(values).all() or not (values > 0).all():
        raise _bad_scale(name, tensor.file)
    return values.copy()


def _bad_scale(name: str, file: Path) -> CheckpointError:
    return CheckpointError(
        f"{name} is not a finite scale above 0 with a float32 reciprocal",
        "quantise the checkpoint again",
        code="CKPT-SCALE",
        where=str(file),
    )
