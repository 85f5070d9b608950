"""SeparateExperts: a mixture's experts as one linear layer each. Stands in for the fused tensors of transformers 5.

Checkpoints store experts one by one, and the input of each is measured one by one; fused tensors allow neither.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]


class Expert(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int, act: Activation) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        product: Tensor = self.down_proj(self._act(self.gate_proj(x)) * self.up_proj(x))
        return product


class SeparateExperts(nn.ModuleList):
    """The experts of one layer, called as transformers calls its fused ones."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """T tokens, H hidden size, K experts per token: [T, H], ids [T, K], weights [T, K] -> [T, H]."""
        total = torch.zeros_like(hidden_states)
        for number, expert in enumerate(self):
            token, position = torch.where(top_k_index == number)
            if token.numel():
                out = expert(hidden_states[token]) * top_k_weights[token, position, None]
                total.index_add_(0, token, out.to(total.dtype))
        return total


def separate_experts(layer: nn.Module) -> None:
    """Replace the fused experts of a decoder layer, where it has any; the new ones are empty (meta device)."""
    block = getattr(layer, "mlp", None)
    fused = getattr(block, "experts", None)
    if block is None or fused is None or isinstance(fused, nn.ModuleList):
        return
    num_experts, hidden_size, intermediate_size = fused.down_proj.shape
    with torch.device("meta"):
        experts = [Expert(hidden_size, intermediate_size, fused.act_fn) for _ in range(num_experts)]
    block.experts = SeparateExperts(experts)
