"""A mixture of experts: which MLPs a token visits, and their weighted sum. Knows no names and no files.

A row's result does not depend on its company: every expert runs on its rows as any linear layer does (two at least),
and a row adds up its experts in the order of their numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtkit.reference.model.linear import MIN_ROWS, Linear
from trtkit.reference.model.mlp import Mlp

_LANES = 32


@dataclass(frozen=True)
class SharedExpert:
    """An MLP that every token visits, weighed by the sigmoid of its product with `gate`, [E] float32.

    PyTorch computes the last elements of a tensor, up to _LANES of them, with another exponential than those before:
    each row gets as many copies, so that its own is the same in every company.
    """

    mlp: Mlp
    gate: Tensor

    def __call__(self, x: Tensor, num_rows: int) -> Tensor:
        """[N, E] -> [N, E] float32"""
        logits = (x.float() * self.gate).sum(1, keepdim=True).expand(-1, _LANES).contiguous()
        return torch.sigmoid(logits)[:, :1] * self.mlp(x, num_rows)


class Experts:
    """The sparse MLP of a layer.

    N rows, E hidden_size, X experts, K of them for each row. router: [N, E] float32 -> [N, X].
    """

    def __init__(
        self, router: Linear, experts: Sequence[Mlp], *, top_k: int, normalizes: bool, shared: SharedExpert | None
    ) -> None:
        self._router = router
        self._experts = experts
        self._top_k = top_k
        self._normalizes = normalizes
        self._shared = shared

    def __call__(self, x: Tensor, num_rows: int) -> Tensor:
        """[N, E] -> [N, E]; rows from num_rows on are padding, which no expert computes."""
        weights, chosen = self._route(x)
        mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        visits = chosen[:num_rows].flatten()
        by_expert = visits.argsort(stable=True)
        start = 0
        for expert, count in enumerate(torch.bincount(visits, minlength=len(self._experts)).tolist()):
            if count:
                mine = by_expert[start : start + count]
                rows = mine // self._top_k
                answer = self._run(expert, x[rows])
                mixed.index_add_(0, rows, answer * weights.flatten()[mine, None])
            start += count
        if self._shared is not None:
            mixed += self._shared(x, num_rows)
        return mixed.to(x.dtype)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, experts), both [N, K], by falling probability: a softmax over all experts, in float32."""
        best = torch.softmax(self._router(x.float()), dim=1).topk(self._top_k, dim=1)
        weights = best.values / best.values.sum(1, keepdim=True) if self._normalizes else best.values
        return weights, best.indices

    def _run(self, expert: int, rows: Tensor) -> Tensor:
        """One expert on some rows. [n, E] -> [n, E] float32"""
        padded = rows if len(rows) >= MIN_ROWS else rows.expand(MIN_ROWS, -1).contiguous()
        return self._experts[expert](padded, len(rows))[: len(rows)].float()
