"""Cross entropy of a small head with a few weighted choices per place. Knows logits, not where they come from."""

from typing import Any

import torch
from torch import Tensor

# Rows of logits that are alive at once: their exponentials stay in the processor's cache.
_CHUNK = 512


class ChoiceLoss(torch.autograd.Function):
    """Head, softmax and their gradients in one sweep over the places, so that no whole matrix of logits exists.

    A places, E hidden_size, V' rows of the head, C choices.
        states   [A, E]
        head     [V', E]
        rows     [A, C] the row of each choice
        weights  [A, C] float32, 0 for a choice that the head does not have
        returns  the sum over all choices of weight x (logsumexp of the place - logit of the choice), over A
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """Compute in bfloat16, add up in float32."""
        narrow_head = head.to(torch.bfloat16)
        narrow_states = states.to(torch.bfloat16)
        states_gradient, head_gradient = torch.empty_like(narrow_states), torch.zeros_like(head)
        total = torch.zeros(())
        for start in range(0, len(states), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = (narrow_states[part] @ narrow_head.T).float()
            chosen = logits.gather(1, rows[part])
            highest = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(highest).exp_()
            sums = exponentials.sum(1, keepdim=True)
            mass = weights[part].sum(1, keepdim=True)
            total += (mass * (sums.log() + highest)).sum() - (weights[part] * chosen).sum()
            gradient = exponentials.mul_(mass / sums).scatter_add_(1, rows[part], -weights[part])
            narrow = gradient.to(torch.bfloat16)
            states_gradient[part] = narrow @ narrow_head
            head_gradient += narrow.T @ narrow_states[part]
        ctx.save_for_backward(states_gradient, head_gradient)
        ctx.num_places = len(states)
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scale what forward has computed."""
        states_gradient, head_gradient = ctx.saved_tensors
        scale = gradients[0] / ctx.num_places
        return states_gradient.float() * scale, head_gradient * scale, None, None
