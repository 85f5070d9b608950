"""How alike two models predict the next token of a text. Knows logits; sums them up over many texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Agreement:
    """Running sums over positions; `add` takes one text at a time.

    kl is the Kullback-Leibler divergence of the deployment's distribution from the oracle's, in nats.
    """

    num_positions: int = 0
    num_same_best: int = 0
    kl_sum: float = 0.0
    kl_max: float = 0.0
    max_logit_error: float = 0.0
    num_predicted: int = 0
    nll_sums: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, token_ids: Sequence[int], oracle: Tensor, deployed: Tensor) -> None:
        """T tokens, V vocabulary: oracle [T, V], deployed [T, V], float32, of one pass over token_ids each."""
        log_p, log_q = torch.log_softmax(oracle, dim=1), torch.log_softmax(deployed, dim=1)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=1)
        self.num_positions += len(token_ids)
        self.num_same_best += int((oracle.argmax(dim=1) == deployed.argmax(dim=1)).sum())
        self.kl_sum += kl.sum().item()
        self.kl_max = _larger(self.kl_max, kl.max().item())
        self.max_logit_error = _larger(self.max_logit_error, (oracle - deployed).abs().max().item())
        self.num_predicted += len(token_ids) - 1
        following = torch.tensor(list(token_ids[1:]))[:, None]
        for side, log_probs in enumerate((log_p, log_q)):
            self.nll_sums[side] -= log_probs[:-1].gather(1, following).sum().item()

    @property
    def top1_agreement(self) -> float:
        """Share of positions at which both prefer the same token."""
        return self.num_same_best / self.num_positions

    @property
    def mean_kl(self) -> float:
        """Mean over positions, in nats."""
        return self.kl_sum / self.num_positions

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
