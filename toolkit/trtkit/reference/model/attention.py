"""Causal attention of new rows over cached keys. Knows tiles and heads, no tokens and no weights.

A row's result does not depend on which rows are computed with it: keys are always read in whole tiles from the
sequence's start to the end of the row's own tile, and the query rows of a tile are padded to a multiple of
_QUERY_STEP, below which the matrix kernels of PyTorch's CPU attention order their additions differently.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trtkit.reference.batch import TILE, Tile

_QUERY_STEP = 4


class Attention:
    """The masks and the scratch memory that all layers share.

    H num_kv_heads, G query heads per key head, D head_dim, T capacity of a slot, N rows.
    """

    def __init__(self, *, num_kv_heads: int, group_size: int, head_dim: int, capacity: int, like: Tensor) -> None:
        self._heads = (num_kv_heads, group_size, head_dim)
        num_query_rows = TILE * group_size + _QUERY_STEP
        self._queries = like.new_zeros(1, num_kv_heads, num_query_rows, head_dim)
        # One mask for all: cut from the right, its last TILE columns are causal and all before them are visible.
        row = torch.arange(num_query_rows, device=like.device)[:, None] // group_size
        column = torch.arange(capacity, device=like.device)[None] - (capacity - TILE)
        self._mask = torch.where(column <= row, 0.0, -torch.inf).to(like.dtype)

    def plan(self, tiles: Sequence[Tile], out: Tensor) -> "TilePlan":
        """Prepare the views that one pass needs; `out` [N, H * G * D] receives the result in every layer."""
        return TilePlan(tiles, self._heads, self._queries, self._mask, out)


class TilePlan:
    """Attention of one pass, layer after layer, over views that are the same in all of them."""

    def __init__(
        self, tiles: Sequence[Tile], heads: tuple[int, int, int], queries: Tensor, mask: Tensor, out: Tensor
    ) -> None:
        num_kv_heads, group_size, head_dim = heads
        self._heads = heads
        self.out = out
        self._tiles = []
        for tile in tiles:
            num_rows = tile.row_end - tile.row_start
            used = num_rows * group_size
            padded = -(-used // _QUERY_STEP) * _QUERY_STEP
            first = (tile.first_position % TILE) * group_size
            into = queries[0, :, :used].view(num_kv_heads, num_rows, group_size, head_dim).transpose(0, 1)
            tile_mask = mask[first : first + padded, mask.shape[1] - tile.num_keys :]
            result = out[tile.row_start : tile.row_end].view(num_rows, num_kv_heads, group_size, head_dim)
            self._tiles.append((tile, into, queries[:, :, :padded], tile_mask, result))

    def run(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Softmax(Q K^T / sqrt(D)) V for every row, causal, into `out`.

        C rows of the cache.
            queries       [N, H * G, D]
            keys, values  [1, H, C, D]
            returns       [N, H * G * D]
        """
        grouped = queries.view(len(queries), *self._heads)
        for tile, into, padded, mask, result in self._tiles:
            into.copy_(grouped[tile.row_start : tile.row_end])
            mixed = functional.scaled_dot_product_attention(
                padded,
                keys.narrow(2, tile.cache_start, tile.num_keys),
                values.narrow(2, tile.cache_start, tile.num_keys),
                attn_mask=mask,
            )
            num_kv_heads, group_size, head_dim = self._heads
            used = mixed[0, :, : len(result) * group_size]
            result.copy_(used.view(num_kv_heads, -1, group_size, head_dim).transpose(0, 1))
        return self.out
