"""Linear layers for few rows: oneDNN with weights packed once, or plain PyTorch. Knows no model and no quantisation.

Two promises, measured in tests/reference: both kernels compute the same function, and with packed weights a row's
result does not depend on how many rows are computed with it, as long as there are at least MIN_ROWS.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]

# oneDNN takes another path, with another order of addition, for a single row.
MIN_ROWS = 2
# The number of rows the layout is chosen for. It decides nothing but speed; other counts run on the same layout.
_PACKED_FOR_ROWS = 16


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """oneDNN has a kernel for this dtype on this processor (bfloat16 needs AVX-512, float16 AVX-512 FP16)."""
    if device.type != "cpu":
        return False
    try:
        _pack(torch.zeros(16, 16, dtype=dtype))
    except (RuntimeError, AttributeError):  # no such kernel on this processor, no such operator in this build
        return False
    return True


def make_linear(weight: Tensor, bias: Tensor | None, *, packed: bool) -> Linear:
    """y = x W^T + b as a function.

    N rows, I inputs, O outputs.
        weight  [O, I]
        bias    [O]
        x       [N, I]
        y       [N, O]
    """
    if not packed:
        return lambda x: functional.linear(x, weight, bias)
    packed_weight, run = _pack(weight), torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed_weight, bias, "none", [], "")


def _pack(weight: Tensor) -> Tensor:
    """The weight in oneDNN's own blocked layout."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
    return packed
