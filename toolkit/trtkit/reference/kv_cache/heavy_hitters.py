"""HeavyHitters: whose key a cache row holds for each head, and how much attention that got. Knows rows, no attention.

The first slots of a sequence, fixed, hold its sinks and heavy hitters. A token that outlives the window is copied
there, for one layer and head, over the heavy hitter that had to go; the sequence's blocks stay the same, so memory does
too. A pass only proposes that, for each of its last tokens: the drafts among them may still be dropped. settle does it.

L layers, C cache rows, H num_kv_heads, F fixed slots that exist so far, T slots that the pass reads, fixed ones first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MoveHeads = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""(layers, heads, sources, targets), [M] each: copy what some heads keep in a row to another row."""


class Held(NamedTuple):
    """What a layer of a sequence holds once a token has been computed.

    positions  [H, F]  int64, of the tokens in the fixed slots
    masses     [H, T]  float32, the attention that every slot's token got so far, summed over query heads
    """

    positions: Tensor
    masses: Tensor


@dataclass(frozen=True)
class Proposals:
    """What a sequence's pass may come to keep.

    rows          [T]  where the cache holds the slots
    first_recent       position of the first slot behind the fixed ones
    held               number of computed tokens -> one Held for every layer
    """

    rows: Tensor
    num_fixed: int
    first_recent: int
    held: dict[int, list[Held]]

    @property
    def fixed_rows(self) -> Tensor:
        """[F]"""
        return self.rows[: self.num_fixed]


class HeavyHitters:
    """positions and masses of all rows, and what passes proposed for them."""

    def __init__(self, num_layers: int, num_rows: int, num_kv_heads: int, like: Tensor) -> None:
        self._positions = like.new_zeros(num_layers, num_rows, num_kv_heads, dtype=torch.int32)
        self._masses = like.new_zeros(num_layers, num_rows, num_kv_heads, dtype=torch.float32)
        self._proposals: dict[int, Proposals] = {}

    @property
    def num_bytes(self) -> int:
        """Memory beside keys and values."""
        return sum(plane.numel() * plane.element_size() for plane in (self._positions, self._masses))

    def open(self, proposals: Proposals, start: int, end: int) -> None:
        """Begin a pass that computes the tokens [start, end) of a sequence: nothing has looked at them yet."""
        num_new = end - start
        rows = proposals.rows[-num_new:] if start >= proposals.num_fixed else proposals.rows[start:]
        new = torch.arange(start, end, device=rows.device)
        assert len(rows) == num_new, "the tokens of a pass are the last slots that it reads"
        self._positions[:, rows] = new[:, None].int()
        self._masses[:, rows] = 0
        self._proposals[int(proposals.rows[0])] = proposals

    def held(self, layer: int, proposals: Proposals) -> Held:
        """What a layer of a sequence holds before the pass."""
        positions = self._positions[layer].index_select(0, proposals.fixed_rows).T.long()
        return Held(positions, self._masses[layer].index_select(0, proposals.rows).T.contiguous())

    def settle(self, first_row: int, num_computed: int, move: MoveHeads) -> None:
        """Keep what was proposed for that many computed tokens of the sequence whose first row this is."""
        proposals = self._proposals.pop(first_row)
        layers = proposals.held[num_computed]
        positions = torch.stack([held.positions for held in layers]).transpose(1, 2)  # [L, F, H]
        has_changed = positions != self._positions[:, proposals.fixed_rows]
        layer, slot, head = has_changed.nonzero(as_tuple=True)
        sources = proposals.num_fixed + positions[has_changed] - proposals.first_recent
        move(layer, head, proposals.rows[sources], proposals.fixed_rows[slot])
        self._positions[:, proposals.fixed_rows] = positions.int()
        self._masses[:, proposals.rows] = torch.stack([held.masses for held in layers]).transpose(1, 2)
