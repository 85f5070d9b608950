"""Casts between float formats on their bits: exact, round to nearest even, no torch. Knows numbers, no tensor names.

A 16-bit format has 65,536 values, so any function of one value (a cast, + 1.0, a quantisation with one scale) is a
table that is computed once and applied with one gather; numpy gathers several GB/s. float32 takes the long way.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
Convert = Callable[[Bits], Bits]

# The smallest magnitude bits that are no finite number: the exponent is all ones.
_INFINITY_BITS = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
_ALL_16_BITS = np.arange(1 << 16, dtype=np.uint16)


def to_float32(bits: Bits, dtype: str) -> NDArray[np.float32]:
    """The values behind `bits`. dtype: float32, float16, bfloat16, float64 or float8_e4m3fn."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float8_e4m3fn":
        return E4M3_VALUES[bits]
    return bits.astype(np.float32, copy=False)


def from_float32(values: NDArray[np.float32], dtype: str) -> Bits:
    """The bits of `values` in `dtype` (float32, float16, bfloat16), rounded to nearest even; too large gives Inf."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float16)
    bits = values.view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16).astype(np.uint16) | np.uint16(0x40), rounded)


def cast(source: str, target: str, add_one: bool = False) -> Convert | None:
    """The function from bits of `source` to bits of `target`, adding 1.0 in float32 first when asked.

    None means that the bits stay as they are.
    """
    if source == target and not add_one:
        return None
    addend = np.float32(1.0) if add_one else None

    def slowly(bits: Bits) -> Bits:
        values = to_float32(bits, source)
        with np.errstate(invalid="ignore"):
            return from_float32(values if addend is None else values + addend, target)

    return tabulated(slowly, source)


def tabulated(convert: Convert, source: str) -> Convert:
    """`convert` as one gather from a table when `source` has 16 bits, else `convert` itself."""
    if source not in ("float16", "bfloat16"):
        return convert
    dtype = np.float16 if source == "float16" else np.uint16
    table = convert(_ALL_16_BITS.view(dtype))
    return lambda bits: table.take(bits.view(np.uint16))


def has_non_finite(bits: Bits, dtype: str) -> bool:
    """Whether NaN or Inf is among `bits`: one look at the largest, since the exponent is above all but the sign."""
    return dtype in _INFINITY_BITS and magnitude_bits(bits) >= _INFINITY_BITS[dtype]


def magnitude_bits(bits: Bits) -> int:
    """The largest bits without their sign. The largest signed integer is the largest positive number, the largest
    unsigned one the most negative, so two maxima suffice and nothing is copied."""
    if not bits.size:
        return 0
    signed, unsigned = (np.int16, np.uint16) if bits.itemsize == 2 else (np.int32, np.uint32)
    largest = int(bits.view(unsigned).max())
    sign = 1 << (8 * bits.itemsize - 1)
    return max(int(bits.view(signed).max()), largest - sign, 0)


def largest_magnitude(bits: Bits, dtype: str) -> float:
    """max |x|."""
    top = magnitude_bits(bits)
    one = np.array([top], dtype=np.uint32 if dtype == "float32" else np.uint16)
    return float(to_float32(one if dtype == "bfloat16" else one.view(f"<f{one.itemsize}"), dtype)[0])


def _e4m3_values() -> NDArray[np.float32]:
    """The 256 values of float8_e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7F and 0xFF are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


E4M3_VALUES = _e4m3_values()
E4M3_MAX = 448.0
_E4M3_POSITIVE = E4M3_VALUES[:127]
_E4M3_MIDDLES = (_E4M3_POSITIVE[1:] + _E4M3_POSITIVE[:-1]) / np.float32(2)


def to_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The nearest float8_e4m3fn, ties to even, saturating at 448; NaN stays NaN.

    A value between two codes goes to the upper one when it lies above their middle, or on it and the lower is odd.
    """
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    below = np.searchsorted(_E4M3_MIDDLES, magnitude, side="left")
    above = np.searchsorted(_E4M3_MIDDLES, magnitude, side="right")
    codes = np.where((below != above) & (below % 2 == 1), above, below).astype(np.uint8)
    codes = np.where(np.isnan(values), np.uint8(127), codes)
    return codes | (np.signbit(values).astype(np.uint8) << np.uint8(7))
