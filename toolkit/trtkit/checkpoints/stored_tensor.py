"""StoredTensor: where the bytes of one tensor lie, and what they are. Knows dtype names, opens no file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# The names safetensors writes -> (our name, bytes per element, the numpy type that carries the bits).
# bfloat16 and the 8-bit floats have no numpy type: their bits travel as unsigned integers.
_DTYPES: dict[str, tuple[str, int, str]] = {
    "F64": ("float64", 8, "<f8"),
    "F32": ("float32", 4, "<f4"),
    "F16": ("float16", 2, "<f2"),
    "BF16": ("bfloat16", 2, "<u2"),
    "F8_E4M3": ("float8_e4m3fn", 1, "|u1"),
    "F8_E5M2": ("float8_e5m2", 1, "|u1"),
    "I64": ("int64", 8, "<i8"),
    "U64": ("uint64", 8, "<u8"),
    "I32": ("int32", 4, "<i4"),
    "U32": ("uint32", 4, "<u4"),
    "I16": ("int16", 2, "<i2"),
    "U16": ("uint16", 2, "<u2"),
    "I8": ("int8", 1, "|i1"),
    "U8": ("uint8", 1, "|u1"),
    "BOOL": ("bool", 1, "|b1"),
}
_BY_NAME = {name: (code, size, bits) for code, (name, size, bits) in _DTYPES.items()}

FLOAT_DTYPES = ("float32", "float16", "bfloat16")


def dtype_of_code(code: str) -> str | None:
    """The dtype that safetensors calls `code`, or None when it is unknown here."""
    return _DTYPES[code][0] if code in _DTYPES else None


def code_of_dtype(dtype: str) -> str:
    """The name safetensors writes for `dtype`."""
    return _BY_NAME[dtype][0]


def itemsize_of(dtype: str) -> int:
    """Bytes per element."""
    return _BY_NAME[dtype][1]


def bits_of(dtype: str) -> "np.dtype[Any]":
    """The numpy type that carries the bits of `dtype`."""
    return np.dtype(_BY_NAME[dtype][2])


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file: bytes [start, stop) of `file`, row-major, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Length of the data."""
        return self.stop - self.start
