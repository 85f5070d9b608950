"""Tensor and ModelContract: how one Triton model's inputs and outputs are declared. Knows no particular model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
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
        return self._inputs_by_name[name]

    def declares(self, name: str) -> bool:
        """Whether there is such an input; the names of some differ between releases."""
        return name in self._inputs_by_name

    def output(self, name: str) -> Tensor:
        """The output called `name`; KeyError when the model has none."""
        return self._outputs_by_name[name]

    # A request asks for dozens of names, and a request of one draft is a millisecond's work.
    @cached_property
    def _inputs_by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.inputs}

    @cached_property
    def _outputs_by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.outputs}


def one_row(tensor: Tensor, values: Any) -> Array:
    """`values` as the array of a request with one row: the batch axis in front, strings as bytes.

    A single value stands for [value]; the caller gives lists for everything longer.
    """
    given = values if isinstance(values, list | tuple | np.ndarray) else [values]
    # Objects from the start: NumPy's own strings lose the zero characters at their end.
    array = np.asarray(given, dtype=np.object_ if tensor.dtype == "STRING" else None)
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


def ragged(dtype: Dtype, names: str, *dims: int) -> list[Tensor]:
    """Like `optional`, for inputs whose lengths may differ within one batch."""
    return [Tensor(name, dtype, dims, optional=True, ragged=True) for name in names.split()]


def scalars(dtype: Dtype, names: str, *, needed: bool = False) -> list[Tensor]:
    """Inputs of one number per row."""
    return [Tensor(name, dtype, (1,), optional=not needed, scalar=True) for name in names.split()]


def rename(tensors: Iterable[Tensor], names: dict[str, str]) -> list[Tensor]:
    """The same declarations under other names, for releases that called them so."""
    return [Tensor(names.get(t.name, t.name), t.dtype, t.dims, t.optional, t.scalar, t.ragged) for t in tensors]
