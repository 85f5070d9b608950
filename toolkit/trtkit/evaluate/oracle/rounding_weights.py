"""The oracle with layers rounded as a quantised deployment has them: how far does that move its state?"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trtkit.evaluate.oracle.matrix_rounding import (
    matrices_of,
    quantized_modules,
    round_inputs,
    round_weights,
    smallest,
    upright,
)
from trtkit.evaluate.oracle.oracle import Oracle

MAX_SEQUENCES = 12


def measure_weight_error(oracle: Oracle, sequences: Sequence[tuple[Sequence[int], int]], quantization: str) -> float:
    """Root-mean-square relative distance of the oracle's last states with and without the rounding.

    sequences: (token ids, how many of the last ones count).
    """
    squares: list[float] = []
    for token_ids, num_last in sequences[:MAX_SEQUENCES]:
        exact = oracle.states(token_ids)[-num_last:]
        with rounded_matrices(oracle, quantization):
            moved = oracle.states(token_ids)[-num_last:]
        squares += ((moved - exact).square().sum(dim=1) / exact.square().sum(dim=1)).tolist()
    return float(f"{math.sqrt(math.fsum(squares) / len(squares)):.4g}") if squares else 0.0


@contextmanager
def rounded_matrices(oracle: Oracle, quantization: str) -> Iterator[None]:
    """Inside, every matrix of the decoder layers is rounded while it is used, and so is what enters it.

    One matrix at a time, so that no second model is kept. Embeddings, head, norms and routers stay as they are.
    """
    exact: dict[tuple[nn.Module, str], Any] = {}

    def enter(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs = given[0]
        smoothing = _smoothing(module, inputs) if quantization == "int8_smoothquant" else None
        for name, matrix in matrices_of(module):
            exact[module, name] = matrix
            rows = upright(module, matrix)
            rounded = _smoothed(rows, smoothing, lambda values: round_weights(values, quantization))
            module._parameters[name] = upright(module, rounded)  # type: ignore[assignment]
        seen = _smoothed(inputs, None if smoothing is None else 1 / smoothing, lambda x: round_inputs(x, quantization))
        return (seen, *given[1:])

    def leave(module: nn.Module, _given: Any, _result: Any) -> None:
        for name, _ in matrices_of(module):
            module._parameters[name] = exact.pop((module, name))

    with ExitStack() as hooks:
        for module in quantized_modules(oracle.model.base_model):
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        yield


def _smoothing(module: nn.Module, inputs: Tensor) -> Tensor | None:
    """SmoothQuant's factor of each input channel (Xiao et al. 2023, alpha 0.5): sqrt(max |x| / max |w|).  [channels]"""
    matrices = [upright(module, matrix) for _, matrix in matrices_of(module)]
    if any(matrix.shape[-1] != inputs.shape[-1] for matrix in matrices):
        return None  # experts: what enters their second matrix is not seen here
    largest = torch.stack([matrix.abs().flatten(0, -2).amax(0) for matrix in matrices]).amax(0)
    return (inputs.abs().flatten(0, -2).amax(0) / largest.clamp(min=smallest(largest))).sqrt().clamp(min=1e-5)


def _smoothed(values: Tensor, factors: Tensor | None, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    return rounding(values) if factors is None else rounding(values * factors) / factors
