"""How the parts that tensor ranks hold become whole again. Knows orders of rows, no files and no names."""

from typing import Literal

import torch
from torch import Tensor

from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.linear_weight import JoinRows

Cut = Literal["whole", "rows", "halves", "qkv", "vocabulary", "columns"]
"""What each of R ranks holds of a matrix.

whole       all of it
rows        its run of rows; vocabulary: padded with zero rows to a multiple of the ranks
halves      its run of the first half of the rows, then its run of the second half
qkv         the rows of its query heads, its key heads, its value heads
columns     its run of columns
"""


def rows_joiner(cut: Cut, config: ModelConfig) -> JoinRows:
    """The function that undoes a cut of rows."""
    if cut == "qkv":
        return lambda parts: join_qkv(parts, config)
    if cut == "halves":
        return join_halves
    if cut == "vocabulary":
        return lambda parts: _cat(parts)[: config.vocab_size]
    return _cat if cut == "rows" else lambda parts: parts[0]


def join_halves(parts: list[Tensor]) -> Tensor:
    """[A ; B] from [A_r ; B_r] of each rank."""
    halves = [part.chunk(2) for part in parts]
    return _cat([*(half[0] for half in halves), *(half[1] for half in halves)]) if len(parts) > 1 else parts[0]


def join_qkv(parts: list[Tensor], config: ModelConfig) -> Tensor:
    """[Q ; K ; V] of all heads from the [Q_r ; K_r ; V_r] of each rank.

    With more ranks than key heads every head stands on several neighbouring ranks; the first copy is taken.

    R ranks, P rows of one rank, Q and K rows of all query and key heads.
        parts    R x [P] or [P, hidden_size]
        returns  [Q + 2 * K] or [Q + 2 * K, hidden_size]
    """
    num_ranks = len(parts)
    num_q_rows = config.num_q_heads * config.head_dim // num_ranks
    num_kv_rows = max(config.num_kv_heads // num_ranks, 1) * config.head_dim
    split = [torch.split(part, [num_q_rows, num_kv_rows, num_kv_rows]) for part in parts]
    stride = max(num_ranks // config.num_kv_heads, 1)
    queries = [piece[0] for piece in split]
    keys, values = ([piece[i] for piece in split[::stride]] for i in (1, 2))
    return _cat([*queries, *keys, *values]) if num_ranks > 1 else parts[0]


def _cat(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]
