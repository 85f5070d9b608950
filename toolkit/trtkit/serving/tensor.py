"""Tensor and ModelContract: how one Triton model's inputs and outputs are declared. Knows no particular model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

Dtype = Literal["BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "STRING"]

Array = NDArray[Any]
Outputs = Mapping[str, Array]

NUMPY_DTYPE: dict[Dtype, DTypeLike] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "STRING": np.object_,
}


@dataclass(frozen=True)
class Tensor:
    """One input or output, without the batch axis.

    dims are Triton's (-1 is any length). A scalar is declared as dims [1] with an empty reshape, so that clients
    send [batch, 1] and the model receives [batch]. A ragged input may differ in length within one batch.
    """

    name: str
    dtype: Dtype
    dims: tuple[int, ...]
    optional: bool = False
    scalar: bool = False
    ragged: bool = False

    @property
    def wire_dtype(self) -> str:
        """The name of the dtype in a client's request, which differs from the config's for strings."""
        return "BYTES" if self.dtype == "STRING" else self.dtype


@dataclass(frozen=True)
class ModelContract:
    """Every tensor of one Triton model, in the order of its config."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def input(self, name: str) -> Tensor:
        """The input called `name`; KeyError when the model has none."""
        return _find(self.inputs, name)

    def output(self, name: str) -> Tensor:
        """The output called `name`; KeyError when the model has none."""
        return _find(self.outputs, name)


def one_row(tensor: Tensor, values: Any) -> Array:
    """`values` as the array of a request with one row: the batch axis in front, strings as bytes.

    A single value stands for [value]; the caller gives lists for everything longer.
    """
    array = np.asarray(values if isinstance(values, list | tuple | np.ndarray) else [values])
    if tensor.dtype == "STRING":
        flat = [value.encode() if isinstance(value, str) else value for value in array.reshape(-1).tolist()]
        array = np.array(flat, dtype=np.object_)
    return array.astype(NUMPY_DTYPE[tensor.dtype])[np.newaxis]


def required(dtype: Dtype, names: str, *dims: int) -> list[Tensor]:
    """One declaration per name of `names` (separated by spaces); all of the same type."""
    return [Tensor(name, dtype, dims) for name in names.split()]


def optional(dtype: Dtype, names: str, *dims: int) -> list[Tensor]:
    """Like `required`, for inputs that a request may leave out."""
    return [Tensor(name, dtype, dims, optional=True) for name in names.split()]


def scalars(dtype: Dtype, names: str, *, needed: bool = False) -> list[Tensor]:
    """Inputs of one number per row."""
    return [Tensor(name, dtype, (1,), optional=not needed, scalar=True) for name in names.split()]


def rename(tensors: Iterable[Tensor], names: dict[str, str]) -> list[Tensor]:
    """The same declarations under other names, for releases that called them so."""
    return [Tensor(names.get(t.name, t.name), t.dtype, t.dims, t.optional, t.scalar, t.ragged) for t in tensors]


def _find(tensors: Sequence[Tensor], name: str) -> Tensor:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise KeyError(name)
