"""The MLP of a layer: up, activation, down. Knows no experts and no weights' names."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from trtkit.reference.model.families import Activation
from trtkit.reference.model.linear import Linear

Mlp = Callable[[Tensor, int], Tensor]
"""(x [N, E], number of its rows that are not padding) -> [N, E]"""

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
}


def make_mlp(up: Linear, down: Linear, activation: Activation, *, is_gated: bool) -> Mlp:
    """down(act(fc) * gate) of up(x) = [fc ; gate], or down(act(up(x)))."""
    act = _ACTIVATIONS[activation]

    def gated(x: Tensor, _: int) -> Tensor:
        fc, gate = up(x).chunk(2, dim=1)
        return down(act(fc).mul_(gate))

    return gated if is_gated else lambda x, _: down(act(up(x)))
