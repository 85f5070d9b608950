"""The byte order of INT8 and INT4 weight-only weights in a TensorRT-LLM checkpoint, both ways. Knows no scales.

The mixed-precision GEMM kernels read weights in the order their tensor-core instructions want, which depends on the
GPU generation the checkpoint is for. From a row-major [inputs K, outputs N] matrix of signed integers:

1. rows are permuted within runs of 16 (INT8) or 32 (INT4);
2. the matrix is transposed: N columns of K values;
3. (before Hopper) 2 (INT8) or 4 (INT4) neighbouring columns are interleaved in runs of 64 rows;
4. values get 128 (8) added, and within every 32-bit word the even ones come first in the order the kernel unpacks them.

Stacked experts have no Hopper kernels and keep step 3; so does everything on later GPUs, which run Ampere's kernels.
The tensor keeps the shape [K, N] (INT4: [K, N / 2]) whatever its byte order is.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Bits = Literal[8, 4]
AMPERE, HOPPER = 80, 90
TILE_ROWS = 64
_COLUMNS = {8: 2, 4: 4}
_WORD_ORDER = {8: (0, 2, 1, 3), 4: (0, 2, 4, 6, 1, 3, 5, 7)}


def layout_arch(arch: int, *, experts: bool) -> int:
    """The SM version whose order weights for a GPU of SM `arch` are in."""
    return AMPERE if arch > HOPPER or (experts and arch == HOPPER) else arch


def pack_weight_only(values: NDArray[np.int8], bits: Bits, arch: int) -> NDArray[np.int8]:
    """Bring signed integers [K, N] into the kernel's order of SM version `arch` (see layout_arch).

    K and N must be multiples of 64. Returns int8 [K, N], for 4 bits [K, N / 2].
    """
    rows, columns = values.shape
    assert rows % TILE_ROWS == 0 and columns % TILE_ROWS == 0, f"{values.shape} is not made of tiles of {TILE_ROWS}"
    permuted = values.reshape(-1, len(_row_order(bits)), columns)[:, list(_row_order(bits))].reshape(rows, columns)
    by_column = np.ascontiguousarray(permuted.T)
    if arch < HOPPER:
        group = _COLUMNS[bits]
        tiles = by_column.reshape(columns // group, group, rows // TILE_ROWS, TILE_ROWS)
        by_column = tiles.transpose(0, 2, 1, 3)
    order = _WORD_ORDER[bits]
    words = (by_column.reshape(-1, len(order)).view(np.uint8) + np.uint8(1 << (bits - 1)))[:, list(order)]
    if bits == 8:
        return words.reshape(rows, columns).view(np.int8)
    return _join_nibbles(words & np.uint8(15)).reshape(rows, columns // 2).view(np.int8)


def unpack_weight_only(packed: NDArray[Any], bits: Bits, arch: int) -> NDArray[np.int8]:
    """The signed integers [K, N] behind what pack_weight_only returned."""
    rows = packed.shape[0]
    columns = packed.shape[1] * (8 // bits)
    flat = packed.reshape(-1).view(np.uint8)
    values = flat if bits == 8 else split_nibbles(flat)
    order = _WORD_ORDER[bits]
    words = values.reshape(-1, len(order))[:, np.argsort(order)] - np.uint8(1 << (bits - 1))
    by_column = words.view(np.int8).reshape(columns, rows)
    if arch < HOPPER:
        group = _COLUMNS[bits]
        tiles = by_column.reshape(columns // group, rows // TILE_ROWS, group, TILE_ROWS)
        by_column = tiles.transpose(0, 2, 1, 3).reshape(columns, rows)
    inverse = np.argsort(_row_order(bits))
    return np.ascontiguousarray(by_column.T).reshape(-1, len(inverse), columns)[:, inverse].reshape(rows, columns)


def split_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes [..., M] into their halves [..., 2 M], the low one first; unsigned 0 .. 15."""
    halves: NDArray[np.uint8] = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return halves.reshape(*packed.shape[:-1], packed.shape[-1] * 2)


def _join_nibbles(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    joined: NDArray[np.uint8] = values[..., 0::2] | (values[..., 1::2] << np.uint8(4))
    return joined


def _row_order(bits: Bits) -> tuple[int, ...]:
    """Which row stands where in a run: each thread of the kernel's load holds pairs of rows 8 apart."""
    span = 128 // bits
    return tuple(base + step + pair for base in range(0, 8, 2) for step in range(0, span, 8) for pair in (0, 1))
