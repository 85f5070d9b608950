"""Causal attention of new rows over cached keys. Knows tiles and heads, no tokens and no weights.

A row's result does not depend on which rows are computed with it: keys are always read in whole tiles from the
sequence's start (or the window's) to the end of the row's own tile, and the query rows of a tile are padded to a
multiple of _QUERY_STEP, below which the matrix kernels of PyTorch's CPU attention order their additions differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from trtkit.reference.batch import TILE, Tile
from trtkit.reference.model.attention_rule import AttentionRule

_QUERY_STEP = 4


class Attention:
    """The masks and the scratch memory that all layers share.

    H num_kv_heads, G query heads per key head, D head_dim, T capacity of a slot, N rows.
    """

    def __init__(
        self,
        *,
        num_kv_heads: int,
        group_size: int,
        head_dim: int,
        capacity: int,
        rules: Sequence[AttentionRule],
        like: Tensor,
    ) -> None:
        self._heads = (num_kv_heads, group_size, head_dim)
        num_query_rows = TILE * group_size + _QUERY_STEP
        self._queries = like.new_zeros(1, num_kv_heads, num_query_rows, head_dim)
        self._rules = rules
        self._masks = {rule.window: _mask(rule.window, num_query_rows, group_size, capacity, like) for rule in rules}

    def plan(self, tiles: Sequence[Tile], out: Tensor) -> "TilePlan":
        """Prepare the views that one pass needs; `out` [N, H * G * D] receives the result in every layer."""
        windows = {
            window: [self._piece(tile, window, out) for tile in tiles]
            for window in {rule.window for rule in self._rules}
        }
        return TilePlan(self._heads, self._rules, windows, out)

    def _piece(self, tile: Tile, window: int | None, out: Tensor) -> "Piece":
        num_kv_heads, group_size, head_dim = self._heads
        num_rows = tile.row_end - tile.row_start
        used = num_rows * group_size
        padded = -(-used // _QUERY_STEP) * _QUERY_STEP
        first = (tile.first_position % TILE) * group_size
        # A window starts in the tile that the first row of a whole tile would see, whichever rows are computed.
        skipped = 0 if window is None else max(0, (tile.num_keys - TILE - window + 1) // TILE * TILE)
        mask = self._masks[window]
        return Piece(
            tile=tile,
            into=self._queries[0, :, :used].view(num_kv_heads, num_rows, group_size, head_dim).transpose(0, 1),
            queries=self._queries[:, :, :padded],
            mask=mask[first : first + padded, mask.shape[1] - tile.num_keys + skipped :],
            keys=(tile.cache_start + skipped, tile.num_keys - skipped),
            result=out[tile.row_start : tile.row_end].view(num_rows, num_kv_heads, group_size, head_dim),
        )


@dataclass(frozen=True)
class Piece:
    """The views that one tile needs in every layer with the same window. keys: (first cache row, number of rows)."""

    tile: Tile
    into: Tensor
    queries: Tensor
    mask: Tensor
    keys: tuple[int, int]
    result: Tensor


class TilePlan:
    """Attention of one pass, layer after layer, over views that are the same in all of them."""

    def __init__(
        self,
        heads: tuple[int, int, int],
        rules: Sequence[AttentionRule],
        windows: Mapping[int | None, list[Piece]],
        out: Tensor,
    ) -> None:
        self._heads = heads
        self._rules = rules
        self._windows = windows
        self.out = out

    def run(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Softmax(scale Q K^T) V for every row, causal, into `out`; see AttentionRule for what a layer adds.

        C rows of the cache.
            queries       [N, H * G, D]
            keys, values  [1, H, C, D]
            returns       [N, H * G * D]
        """
        num_kv_heads, group_size, head_dim = self._heads
        rule = self._rules[layer]
        attend = functional.scaled_dot_product_attention if rule.soft_cap is None else partial(_capped, rule.soft_cap)
        grouped = queries.view(len(queries), *self._heads)
        for piece in self._windows[rule.window]:
            piece.into.copy_(grouped[piece.tile.row_start : piece.tile.row_end])
            mixed = attend(
                piece.queries,
                keys.narrow(2, *piece.keys),
                values.narrow(2, *piece.keys),
                attn_mask=piece.mask,
                scale=rule.scale,
            )
            used = mixed[0, :, : len(piece.result) * group_size]
            piece.result.copy_(used.view(num_kv_heads, -1, group_size, head_dim).transpose(0, 1))
        return self.out


def _mask(window: int | None, num_query_rows: int, group_size: int, capacity: int, like: Tensor) -> Tensor:
    """One mask for all tiles, cut from the right: its last TILE columns are causal, all before them are visible as far
    as the window reaches.

    [num_query_rows, capacity], 0 or -inf
    """
    row = torch.arange(num_query_rows, device=like.device)[:, None] // group_size
    column = torch.arange(capacity, device=like.device)[None] - (capacity - TILE)
    is_visible = column <= row
    if window is not None:
        is_visible = is_visible & (column > row - window)
    return torch.where(is_visible, 0.0, -torch.inf).to(like.dtype)


def _capped(cap: float, queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor, scale: float) -> Tensor:
    """Attention with cap * tanh(score / cap) in place of the score (Gemma 2), which the fused kernels do not have.

    Scores and softmax in float32.
    """
    scores = (queries.float() @ keys.float().transpose(2, 3)) * scale
    scores = torch.tanh_(scores.div_(cap)).mul_(cap) + attn_mask
    return (torch.softmax(scores, dim=-1) @ values.float()).to(queries.dtype)
