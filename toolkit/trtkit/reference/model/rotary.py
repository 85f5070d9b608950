"""Rotary positions as complex rotation. Knows frequencies and scaling kinds, no attention."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trtkit.reference.model.config import RopeConfig


def rotation_table(rope: RopeConfig, head_dim: int, max_seq_len: int) -> Tensor:
    """cos + i sin of every angle, in float32 whatever the model's dtype.

    T max_seq_len, D head_dim.
        returns  [T, 1, D / 2] complex64
    """
    angles = torch.outer(torch.arange(max_seq_len).float(), inverse_frequencies(rope, head_dim))
    return torch.polar(torch.ones_like(angles), angles)[:, None]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """base^(-2i / D), stretched as the scaling kind says. [D / 2] float32."""
    frequencies: Tensor = 1.0 / rope.base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.scaling["factor"]
    if rope.kind == "llama3":
        return _llama3(frequencies, rope.scaling)
    return frequencies


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Divide slow frequencies by the factor, keep fast ones, blend linearly between the two bounds.

    The rule of Llama 3.1 (its reference code, and transformers.modeling_rope_utils): a frequency is slow when its
    wavelength exceeds original_max_position_embeddings / low_freq_factor, fast when below that / high_freq_factor.
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequencies / scaling["factor"], frequencies, blend)


def interleave_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of a projection so that the two parts of every rotated pair become neighbours.

    The checkpoint pairs dimension i with i + D/2; a complex view needs 2i and 2i + 1. Queries and keys are reordered
    alike, so their products stay the same.

    H heads, D head_dim.
        rows     [H * D, ...]
        returns  [H * D, ...]
    """
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn every neighbouring pair by its angle, computing in float32.

    N tokens, H heads, D head_dim.
        heads     [N, H, D]; changed in place when it is float32
        rotation  [N, 1, D / 2] complex64
        returns   [N, H, D] float32
    """
    turned = heads.float()
    torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(rotation)
    return turned
