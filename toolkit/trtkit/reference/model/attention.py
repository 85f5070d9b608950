"""Causal attention of new rows over cached keys. Knows tiles and heads, no tokens and no weights.

A row's result does not depend on which rows are computed with it: tiles.py fixes which keys it reads, and the query
rows of a tile are padded to a multiple of _QUERY_STEP, below which the matrix kernels of PyTorch's CPU attention order
their additions differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention_rule import AttentionRule
from trtkit.reference.model.rotary import rotate
from trtkit.reference.model.tiles import Tile, Visible, cut, key_rows, tile_size

_QUERY_STEP = 4
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class Heads:
    """num_kv_heads key heads, each with group_size query heads, of head_dim numbers."""

    num_kv_heads: int
    group_size: int
    head_dim: int


class Attention:
    """The masks and the scratch memory that all layers share.

    H num_kv_heads, G query heads per key head, D head_dim, N rows. max_keys bounds what a row without a window sees.
    last_position is the position inside the cache of a row whose window has left its sinks behind; None without sinks.
    """

    def __init__(
        self,
        heads: Heads,
        rules: Sequence[AttentionRule],
        storage: KvStorage,
        *,
        max_keys: int,
        block_size: int,
        sink_tokens: int = 0,
    ) -> None:
        self._heads = heads
        self._rules = rules
        self.storage = storage
        self._block_size = block_size
        self._tile = tile_size(block_size)
        self._visible = {rule.window: Visible(rule.window, sink_tokens) for rule in rules}
        windows = [rule.window for rule in rules if rule.window is not None and sink_tokens]
        self.last_position = sink_tokens + windows[0] - 1 if windows else None
        num_rows = self._tile * heads.group_size + _QUERY_STEP
        self._queries = storage.like.new_zeros(1, heads.num_kv_heads, num_rows, heads.head_dim)
        # Sinks are read in whole tiles, too; the keys behind them are masked.
        self._num_sink_keys = -(-sink_tokens // self._tile) * self._tile
        is_sink = torch.arange(self._num_sink_keys).expand(num_rows, -1) < sink_tokens
        self._sink_mask = torch.where(is_sink, 0.0, -torch.inf).to(self._queries)
        self._masks = {
            (visible, is_apart): self._mask(visible, max_keys, is_apart=is_apart)
            for visible in self._visible.values()
            for is_apart in ((False, True) if sink_tokens else (False,))
        }

    def plan(self, spans: Sequence[Span], out: Tensor, turn: Tensor | None = None) -> "TilePlan":
        """Prepare what one pass needs; `out` [N, H * G * D] receives the result in every layer.

        `turn` [N, 1, D / 2] complex64 takes a query from its own position to the last one inside the cache; needed
        where there are sinks.
        """
        works = {
            window: [self._work(span, visible, out) for span in spans] for window, visible in self._visible.items()
        }
        return TilePlan(self._heads, [(rule, works[rule.window]) for rule in self._rules], self.storage, out, turn)

    def _work(self, span: Span, visible: Visible, out: Tensor) -> "SpanWork":
        tiles = list(cut(span, visible, self._tile))
        first, last = min(tile.first_key for tile in tiles), tiles[-1].last_key
        sinks = key_rows(span, 0, self._num_sink_keys, self._block_size) if tiles[-1].is_apart else None
        return SpanWork(
            rows=self._indexed(key_rows(span, first, last, self._block_size)),
            sink_rows=None if sinks is None else self._indexed(sinks),
            pieces=[self._piece(tile, first, self._masks[visible, tile.is_apart], out) for tile in tiles],
        )

    def _piece(self, tile: Tile, first_key: int, mask: Tensor, out: Tensor) -> "Piece":
        num_kv_heads, group_size, head_dim = self._heads.num_kv_heads, self._heads.group_size, self._heads.head_dim
        num_rows = tile.row_end - tile.row_start
        used = num_rows * group_size
        padded = -(-used // _QUERY_STEP) * _QUERY_STEP
        row = (tile.first_slot % self._tile) * group_size
        num_keys = tile.last_key - tile.first_key
        return Piece(
            tile=tile,
            into=self._queries[0, :, :used].view(num_kv_heads, num_rows, group_size, head_dim).transpose(0, 1),
            queries=self._queries[:, :, :padded],
            mask=mask[row : row + padded, mask.shape[1] - num_keys :],
            sink_mask=self._sink_mask[:padded],
            keys=(tile.first_key - first_key, num_keys),
            result=out[tile.row_start : tile.row_end].view(num_rows, num_kv_heads, group_size, head_dim),
            shape=(num_kv_heads, num_rows, group_size, head_dim),
        )

    def _indexed(self, rows: range | list[int]) -> range | Tensor:
        return rows if isinstance(rows, range) else torch.tensor(rows, device=self._queries.device)

    def _mask(self, visible: Visible, max_keys: int, *, is_apart: bool) -> Tensor:
        """One mask for all tiles, cut from the right: its last tile of columns is causal, all before them are visible
        as far as the window reaches. Sinks that touch the window belong to it.

        0 or -inf
        """
        size, window = self._tile, visible.window_tokens
        num_keys = max_keys if window is None else window + visible.sink_tokens + size
        num_columns = -(-num_keys // size) * size + size
        row = torch.arange(self._queries.shape[2])[:, None] // self._heads.group_size
        column = torch.arange(num_columns)[None] - (num_columns - size)
        is_visible = column <= row
        if window is not None and (is_apart or not visible.sink_tokens):
            is_visible = is_visible & (column > row - window)
        return torch.where(is_visible, 0.0, -torch.inf).to(self._queries)


@dataclass(frozen=True)
class Piece:
    """The views that one tile needs in every layer with the same window.

    keys: (first, number of) the span's keys; shape [H, rows, G, D] of a result before it is turned into `result`.
    """

    tile: Tile
    into: Tensor
    queries: Tensor
    mask: Tensor
    sink_mask: Tensor
    keys: tuple[int, int]
    result: Tensor
    shape: tuple[int, int, int, int]


@dataclass(frozen=True)
class SpanWork:
    """One sequence's tiles; `rows` of the cache hold all keys that they read, sink_rows those of sinks apart."""

    rows: range | Tensor
    sink_rows: range | Tensor | None
    pieces: list[Piece]


class TilePlan:
    """Attention of one pass, layer after layer, over views that are the same in all of them."""

    def __init__(
        self,
        heads: Heads,
        layers: Sequence[tuple[AttentionRule, list[SpanWork]]],
        storage: KvStorage,
        out: Tensor,
        turn: Tensor | None,
    ) -> None:
        self._heads = heads
        self._layers = layers
        self._storage = storage
        self._out = out
        self._turn = turn

    def run(self, layer: int, queries: Tensor) -> Tensor:
        """Softmax(scale Q K^T) V for every row, causal; see AttentionRule for what a layer adds.

        queries  [N, H * G, D]
        returns  [N, H * G * D]
        """
        rule, works = self._layers[layer]
        grouped = self._grouped(queries)
        turned = None if self._turn is None else self._grouped(rotate(queries.clone(), self._turn))
        for work in works:
            keys, values = part = self._storage.read(layer, work.rows)
            for piece in work.pieces:
                if len(work.pieces) > 1:
                    part = (keys.narrow(2, *piece.keys), values.narrow(2, *piece.keys))
                if piece.tile.is_apart and work.sink_rows is not None and turned is not None:
                    sinks = self._storage.read(layer, work.sink_rows)
                    mixed = self._attend_apart(piece, (grouped, *part), (turned, *sinks), rule.scale)
                else:
                    mixed = self._attend(piece, grouped, part, rule)
                used = mixed[0, :, : len(piece.result) * self._heads.group_size]
                piece.result.copy_(used.view(*piece.shape).transpose(0, 1))
        return self._out

    def _grouped(self, queries: Tensor) -> Tensor:
        """[N, H * G, D] -> [N, H, G, D]"""
        return queries.view(-1, self._heads.num_kv_heads, self._heads.group_size, self._heads.head_dim)

    def _attend(self, piece: Piece, queries: Tensor, part: tuple[Tensor, Tensor], rule: AttentionRule) -> Tensor:
        """[1, H, rows of the piece * G, D], and padding."""
        piece.into.copy_(queries[piece.tile.row_start : piece.tile.row_end])
        if rule.soft_cap is not None:
            return _capped(rule.soft_cap, piece.queries, *part, attn_mask=piece.mask, scale=rule.scale)
        return functional.scaled_dot_product_attention(piece.queries, *part, attn_mask=piece.mask, scale=rule.scale)

    def _attend_apart(
        self, piece: Piece, window: tuple[Tensor, Tensor, Tensor], sinks: tuple[Tensor, Tensor, Tensor], scale: float
    ) -> Tensor:
        """One softmax over the keys of the window and of the sinks, each (queries, keys, values), by their sums."""
        mixed = []
        for (queries, keys, values), mask in ((window, piece.mask), (sinks, piece.sink_mask)):
            piece.into.copy_(queries[piece.tile.row_start : piece.tile.row_end])
            mixed.append(_flash(piece.queries, keys, values, 0.0, False, attn_mask=mask, scale=scale))
        (near, near_sum), (far, far_sum) = mixed
        # In float64, since vector and scalar code of these operators differ in a float32's last bit.
        share = torch.sigmoid((near_sum - far_sum).double())[..., None]
        return torch.lerp(far.double(), near.double(), share).to(near.dtype)


def _capped(cap: float, queries: Tensor, keys: Tensor, values: Tensor, *, attn_mask: Tensor, scale: float) -> Tensor:
    """Attention with cap * tanh(score / cap) in place of the score (Gemma 2), which the fused kernels do not have.

    Scores and softmax in float32.
    """
    scores = (queries.float() @ keys.float().transpose(2, 3)) * scale
    scores = torch.tanh_(scores.div_(cap)).mul_(cap) + attn_mask
    return (torch.softmax(scores, dim=-1) @ values.float()).to(queries.dtype)
