"""How alike two models predict the next token of a text. Knows logits; sums them up over many texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST_STRETCHES = 24


@dataclass(frozen=True)
class Stretch:
    """Positions `first` to `last` of all texts together, counted from 0."""

    first: int
    last: int
    num_positions: int
    top1_agreement: float
    mean_kl: float
    max_kl: float


@dataclass
class Agreement:
    """Figures over positions; `add` takes one text at a time.

    KL is the Kullback-Leibler divergence of the deployment's distribution from the oracle's, in nats. kls and same_best
    hold a tensor [T] for each text: its divergence at every position, and whether both prefer the same token there.
    """

    kls: list[Tensor] = field(default_factory=list)
    same_best: list[Tensor] = field(default_factory=list)
    max_logit_error: float = 0.0
    num_predicted: int = 0
    nll_sums: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, token_ids: Sequence[int], oracle: Tensor, deployed: Tensor) -> None:
        """T tokens, V vocabulary: oracle [T, V], deployed [T, V], float32, of one pass over token_ids each."""
        log_p, log_q = torch.log_softmax(oracle, dim=1), torch.log_softmax(deployed, dim=1)
        self.kls.append((log_p.exp() * (log_p - log_q)).sum(dim=1).double())
        self.same_best.append(oracle.argmax(dim=1) == deployed.argmax(dim=1))
        self.max_logit_error = _larger(self.max_logit_error, (oracle - deployed).abs().max().item())
        self.num_predicted += len(token_ids) - 1
        following = torch.tensor(list(token_ids[1:]))[:, None]
        for side, log_probs in enumerate((log_p, log_q)):
            self.nll_sums[side] -= log_probs[:-1].gather(1, following).sum().item()

    @property
    def whole(self) -> Stretch:
        """All positions."""
        return self._stretch(0, self._longest)

    def by_position(self) -> list[Stretch]:
        """Stretches of equal length from the first position to the last, at most MOST_STRETCHES: what grows with the
        position, as with a wrong rotation of far ones, shows in them."""
        width = -(-self._longest // MOST_STRETCHES)
        return [self._stretch(first, first + width) for first in range(0, self._longest, width)]

    @property
    def _longest(self) -> int:
        return max(map(len, self.kls))

    def _stretch(self, first: int, stop: int) -> Stretch:
        kl, same = (torch.cat([text[first:stop] for text in texts]) for texts in (self.kls, self.same_best))
        last = min(stop, self._longest) - 1
        return Stretch(first, last, len(kl), same.double().mean().item(), kl.mean().item(), kl.max().item())

    @property
    def perplexities(self) -> tuple[float, float]:
        """The oracle's and the deployment's, of the texts themselves; infinite beyond what a float holds."""
        oracle, deployed = (_exp(total / self.num_predicted) for total in self.nll_sums)
        return oracle, deployed


def _larger(one: float, other: float) -> float:
    """The larger of two; not-a-number, once it came, stays."""
    return other if other > one or math.isnan(other) else one


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
