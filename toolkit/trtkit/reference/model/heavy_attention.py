"""Attention over sinks, heavy hitters and a window (H2O, Zhang et al. 2023). Knows the rule of eviction, no blocks.

Every token reads the fixed slots, then the window, at their places inside the cache. Its attention is added to what
each token got so far, by KV head. The token that then leaves the window takes the slot of the heavy hitter that got
least, or is dropped when it got less itself. What a token sees depends on every token before it, so the rows of a pass
go one after another: in passes of any size they have the same bits.

H num_kv_heads, G query heads of each, D head_dim, F fixed slots, N rows, T slots that a pass reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtkit.reference.batch import Span
from trtkit.reference.kv_cache.heavy_hitters import HeavyHitters, Held, Proposals
from trtkit.reference.kv_cache.retention import Retention
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention import Heads
from trtkit.reference.model.rotary import rotation_at, turned_by


@dataclass(frozen=True)
class SpanWork:
    """What all layers share of one sequence's pass.

    recent_back  [T - F, D / 2]  undoes the rotation of the slots behind the fixed ones
    shifts       [N, D / 2]      from the last position inside the cache to a row's own, where its query is
    """

    span: Span
    proposals: Proposals
    recent_back: Tensor
    shifts: Tensor


class HeavyAttention:
    """The rotations that all layers share. retention has a window; table [positions, 1, D / 2] is the model's."""

    last_position = None  # queries stay at their own positions

    def __init__(
        self,
        heads: Heads,
        scales: Sequence[float],
        storage: KvStorage,
        table: Tensor,
        *,
        retention: Retention,
        block_size: int,
    ) -> None:
        assert retention.window_tokens is not None and storage.hitters is not None, "heavy hitters beside a window"
        self.storage = storage
        self.heads = heads
        self.scales = scales
        self.retention = retention
        self.window = retention.window_tokens
        self.hitters: HeavyHitters = storage.hitters
        self._table = table
        self._block_size = block_size
        # Of yarn and longrope: the stored key has it, undoing the rotation and doing another one squares it.
        self._factor = table[:1].abs().square()
        places = torch.arange(retention.num_fixed, device=table.device)
        self.places = self._rotation(places)[:, 0] / self._factor[:, 0]

    def plan(self, spans: Sequence[Span], out: Tensor, turn: Tensor | None = None) -> "HeavyPlan":
        """Prepare what one pass needs; `out` [N, H * G * D] receives the result in every layer."""
        return HeavyPlan(self, [self._work(span) for span in spans], out)

    def back(self, positions: Tensor) -> Tensor:
        """Undo the rotation of some positions: [...] -> [..., D / 2]; `places` divides by what that leaves over."""
        return self._rotation(positions.flatten()).conj().view(*positions.shape, self._table.shape[2])

    def _rotation(self, positions: Tensor) -> Tensor:
        return rotation_at(self._table, positions, int(positions.max()) if len(positions) else 0)

    def _work(self, span: Span) -> SpanWork:
        num_fixed = self.retention.num_fixed
        first = max(num_fixed, self.retention.first_kept(span.start))
        slots = [*range(min(num_fixed, span.end)), *range(first, span.end)]
        size, device = self._block_size, self._table.device
        rows = torch.tensor([span.blocks[slot // size] * size + slot % size for slot in slots], device=device)
        proposals = Proposals(rows, min(num_fixed, span.end), first, {})
        self.hitters.open(proposals, span.start, span.end)
        behind = torch.arange(span.start, span.end, device=device) - (num_fixed + self.window - 1)
        shifts = turned_by(self._table, behind.clamp(min=0))[:, 0]
        return SpanWork(span, proposals, self.back(torch.arange(first, max(first, span.end), device=device)), shifts)


class HeavyPlan:
    """Attention of one pass, layer after layer."""

    def __init__(self, attention: HeavyAttention, works: Sequence[SpanWork], out: Tensor) -> None:
        self._attention = attention
        self._works = works
        self._out = out

    def run(self, layer: int, queries: Tensor) -> Tensor:
        """Softmax(scale Q K^T) V for every row over what its head still holds, in float32.

        queries  [N, H * G, D]
        returns  [N, H * G * D]
        """
        heads = self._attention.heads
        grouped = queries.float().view(-1, heads.num_kv_heads, heads.group_size, heads.head_dim)
        for work in self._works:
            held, span = HeldTokens(self._attention, layer, work), work.span
            for index in range(span.end - span.start):
                mixed = held.attend(index, grouped[span.row_start + index])
                self._out[span.row_start + index] = mixed.flatten()
                held.let_go(span.start + index)
                if index >= span.end - span.start - 1 - span.num_drafts:
                    work.proposals.held.setdefault(span.start + index + 1, []).append(held.outcome())
        return self._out


class HeldTokens:
    """What one layer of one sequence holds, row by row through a pass.

    keys     [H, F + 1, D / 2]  of the fixed slots, complex, not rotated; the last slot takes who is dropped
    values   [H, F + 1, D]
    places   [H, F + 1]         of the fixed slots inside the cache: by age
    """

    def __init__(self, attention: HeavyAttention, layer: int, work: SpanWork) -> None:
        self._attention = attention
        self._work = work
        self._scale = attention.scales[layer]
        self._num_fixed = num_fixed = work.proposals.num_fixed
        self._num_sinks = min(attention.retention.sink_tokens, num_fixed)
        keys, values = (part[0].float() for part in attention.storage.read(layer, work.proposals.rows))
        positions, masses = attention.hitters.held(layer, work.proposals)
        self._recent_keys, self._recent_values = keys[:, num_fixed:], values[:, num_fixed:]
        self._recent_masses = masses[:, num_fixed:].clone()
        self._keys = _with_spare(_complex(keys[:, :num_fixed]) * attention.back(positions))
        self._values = _with_spare(values[:, :num_fixed])
        self._masses = _with_spare(masses[:, :num_fixed])
        self._positions = _with_spare(positions)
        self._places = _with_spare((positions[:, :, None] > positions[:, None]).sum(2))
        self._heads = torch.arange(len(keys), device=keys.device)

    def attend(self, index: int, query: Tensor) -> Tensor:
        """The index-th row of the pass: [H, G, D] -> [H, G, D], and everybody's attention noted."""
        position = self._work.span.start + index
        num_old = min(position + 1, self._num_fixed)
        recent = self._recent(position)
        turns = (self._attention.places * self._work.shifts[index])[self._places[:, :num_old]]
        old_keys = torch.view_as_real(self._keys[:, :num_old] * turns).flatten(2)
        keys = torch.cat([old_keys, self._recent_keys[:, recent]], 1)
        values = torch.cat([self._values[:, :num_old], self._recent_values[:, recent]], 1)
        shares = torch.softmax((query.contiguous() @ keys.transpose(1, 2)) * self._scale, dim=2)
        got = shares.sum(1)
        self._masses[:, :num_old] += got[:, :num_old]
        self._recent_masses[:, recent] += got[:, num_old:]
        return shares @ values

    def let_go(self, position: int) -> None:
        """The token at `position` was computed: which one leaves the window, and who makes room for it."""
        leaving = position + 1 - self._attention.window
        if leaving < self._attention.retention.num_fixed:
            return  # it has a fixed slot of its own
        at = leaving - self._work.proposals.first_recent
        sinks, spare = self._num_sinks, self._num_fixed
        rivals = torch.cat([self._masses[:, sinks:spare], self._recent_masses[:, at : at + 1]], 1)
        slot = (self._heads, sinks + rivals.argmin(1))
        self._keys[slot] = _complex(self._recent_keys[:, at]) * self._work.recent_back[at]
        self._values[slot] = self._recent_values[:, at]
        self._masses[slot] = self._recent_masses[:, at]
        self._positions[slot] = leaving
        self._places -= (self._places > self._places[slot][:, None]).long()
        self._places[slot] = spare - 1
        self._places[:, spare] = spare

    def outcome(self) -> Held:
        """What is held now."""
        masses = torch.cat([self._masses[:, : self._num_fixed], self._recent_masses], 1)
        return Held(self._positions[:, : self._num_fixed].clone(), masses)

    def _recent(self, position: int) -> slice:
        """The window of a row, behind the fixed slots."""
        first = self._work.proposals.first_recent
        start = max(first, position + 1 - self._attention.window)
        return slice(start - first, max(start, position + 1) - first)


def _complex(keys: Tensor) -> Tensor:
    """[..., D] -> [..., D / 2]: neighbours are a pair."""
    return torch.view_as_complex(keys.reshape(*keys.shape[:-1], -1, 2))


def _with_spare(slots: Tensor) -> Tensor:
    """[H, F, ...] -> [H, F + 1, ...]; its places begin behind all others."""
    return torch.cat([slots, torch.full_like(slots[:, :1], slots.shape[1])], 1)
