"""FP8 linear layers: float8_e4m3fn weights, [outputs, inputs], with one scale for the tensor. Knows no calibration run.

w ~= q * weights_scaling_factor, x ~= q * activation_scaling_factor; each is max / 448, float32 [1]. Parts that share a
GEMM (q, k and v; an expert's up and gate) share a scale, and so do all ranks: it is taken over the whole tensor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.conversion.casting import E4M3_MAX, Convert, largest_magnitude, tabulated, to_e4m3, to_float32
from trtkit.conversion.encoder import Sinks
from trtkit.conversion.layout import Target
from trtkit.conversion.plain_encoder import PlainEncoder
from trtkit.conversion.rank_file import TensorHeader
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.static_scale import static_scale

InputScaleOf = Callable[[Target], float]
"""Target -> activation scale."""


class Fp8Encoder(PlainEncoder):
    """Quantises block by block after one pass for the maximum."""

    def __init__(self, source: SourceFiles, input_scale_of: InputScaleOf) -> None:
        super().__init__(source, "float8_e4m3fn")
        self._files = source
        self._input_scale_of = input_scale_of
        self._largest: dict[str, float] = {}
        self._scales: dict[str, float] = {}
        self._conversions: dict[tuple[str, float], Convert] = {}

    def headers(self, target: Target) -> list[TensorHeader]:
        """`weight`, `weights_scaling_factor` ([experts, 1] for experts) and `activation_scaling_factor`.

        Raises what asking for the activation scale raises: a missing one is known before anything is written.
        """
        self._input_scale_of(target)
        stem = target.name.removesuffix("weight")
        scale_shape = (target.stacked, 1) if target.stacked else (1,)
        return [
            TensorHeader(target.name, "float8_e4m3fn", target.shape),
            TensorHeader(f"{stem}weights_scaling_factor", "float32", scale_shape),
            TensorHeader(f"{stem}activation_scaling_factor", "float32", (1,)),
        ]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Find the scales, append the weights, then the scales."""
        self._conversions.clear()
        scales = [self._weight_scales(target) for target in targets]
        super().write(targets, sinks)
        for target, sink, values in zip(targets, sinks, scales, strict=True):
            if sink is not None:
                sink.append(np.array([*values, self._input_scale_of(target)], dtype=np.float32))

    def encoded(self, bits: NDArray[Any], name: str) -> NDArray[Any]:
        """Quantise with the scale of the source's tensor."""
        key = (self._files.dtype_of(name), self._scales[name])
        if key not in self._conversions:
            self._conversions[key] = fp8_quantizer(*key)
        return self._conversions[key](bits)

    def _weight_scales(self, target: Target) -> list[float]:
        """One scale per matrix of the target; remembers it for each of the matrix's sources."""
        groups = target.stacked or 1
        per_matrix = len(target.slices) // groups
        scales = []
        for first in range(0, len(target.slices), per_matrix):
            names = {piece.source for piece in target.slices[first : first + per_matrix]}
            scale = fp8_scale(max(self._largest_of(name) for name in names))
            self._scales.update(dict.fromkeys(names, scale))
            scales.append(scale)
        return scales

    def _largest_of(self, name: str) -> float:
        if name not in self._largest:
            dtype = self._files.dtype_of(name)
            self._largest[name] = max(
                (largest_magnitude(block, dtype) for block in self._files.all_blocks(name)), default=0.0
            )
            if not np.isfinite(self._largest[name]):
                self._files.non_finite.add(name)
        return self._largest[name]


def fp8_scale(largest: float) -> float:
    """The scale of a weight whose largest magnitude is `largest`: that / 448 in float32.

    1.0 for a weight of zeros, which any scale represents, for numbers so small that their scale has no reciprocal,
    which become zeros, and for a weight with Inf or NaN.
    """
    return static_scale(largest, E4M3_MAX) or 1.0


def fp8_quantizer(dtype: str, scale: float) -> Convert:
    """Bits of `dtype` -> float8_e4m3fn codes of value / scale, saturating."""
    divisor = np.float32(scale)

    def quantize(bits: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            return to_e4m3(to_float32(bits, dtype) / divisor)

    return tabulated(quantize, dtype)
