"""Rotary positions as complex rotation. Knows pairs and their order in a head, no frequencies and no attention."""

import torch
from torch import Tensor

from trtkit.reference.model.config import RopeConfig
from trtkit.reference.model.rope_frequencies import frequencies_of


def rotation_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """factor * (cos + i sin) of every angle, in float32 whatever the model's dtype; 1 for pairs that do not turn.

    T num_positions, D head_dim.
        returns  [T, 1, D / 2] complex64
    """
    per_pair, factor = frequencies_of(rope, num_positions)
    angles = torch.arange(num_positions).float()[:, None] * per_pair
    table = torch.ones(num_positions, 1, head_dim // 2, dtype=torch.complex64)
    table[:, 0, : rope.dim // 2] = torch.polar(torch.full_like(angles, factor), angles)
    return table


def pairs_as_neighbours(rows: Tensor, head_dim: int, rotated_dim: int) -> Tensor:
    """Reorder the rows of a projection so that the two parts of every rotated pair become neighbours.

    The checkpoint pairs element i of a head with i + R/2, i < R/2; a complex view needs 2i and 2i + 1. Queries and keys
    are reordered alike, so their products stay the same. Elements from R on do not turn and stay.

    H heads, D head_dim, R rotated_dim.
        rows     [H * D, ...]
        returns  [H * D, ...]
    """
    turning = torch.arange(rotated_dim).view(2, -1).T.flatten()
    order = torch.cat([turning, torch.arange(rotated_dim, head_dim)])
    return rows.reshape(-1, head_dim, *rows.shape[1:])[:, order].reshape(rows.shape)


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


def rotation_at(table: Tensor, positions: Tensor, farthest: int) -> Tensor:
    """The rotations of some positions, also of those behind the end of a table; `farthest` is the largest of them.

    N positions.
        table      [T, 1, D / 2] complex64
        positions  [N] int64
        returns    [N, 1, D / 2] complex64
    """
    if farthest < len(table):
        return table[positions]
    beyond = turned_by(table, positions) * table[1].abs()
    return torch.where(positions[:, None, None] < len(table), table[positions.clamp(max=len(table) - 1)], beyond)


def turned_by(table: Tensor, distances: Tensor) -> Tensor:
    """cos + i sin of distance times the angle of position 1, in float64, so that a far angle keeps its digits.

    N distances.
        table      [T, 1, D / 2] complex64
        distances  [N] int64
        returns    [N, 1, D / 2] complex64
    """
    angles = table[1].angle().double() * distances[:, None, None]
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
