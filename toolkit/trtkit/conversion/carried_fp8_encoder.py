"""FP8 weights that are FP8 in the source: their bytes and scales are carried over. Knows no calibration.

Parts that share a GEMM need one scale: the largest of theirs; parts with a smaller one are requantised to it
(q' = q * own / shared, saturating), as TensorRT-LLM's loader does. Scales per channel need no requantisation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.conversion.casting import E4M3_VALUES, to_e4m3
from trtkit.conversion.encoder import Sinks
from trtkit.conversion.fp8_encoder import InputScaleOf
from trtkit.conversion.layout import Slice, Target
from trtkit.conversion.plain_encoder import PlainEncoder
from trtkit.conversion.rank_file import TensorHeader
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.source_scales import FP8, SourceScales


class CarriedFp8Encoder(PlainEncoder):
    """One scale per tensor. names maps the rules' source names to stored ones."""

    def __init__(
        self, source: SourceFiles, scales: SourceScales, names: Mapping[str, str], input_scale_of: InputScaleOf
    ) -> None:
        super().__init__(source, FP8)
        self._scales = scales
        self._names = names
        self._input_scale_of = input_scale_of
        self._tables: dict[str, NDArray[np.uint8]] = {}

    def headers(self, target: Target) -> list[TensorHeader]:
        """`weight`, `weights_scaling_factor` ([experts, 1] for experts) and `activation_scaling_factor`.

        Raises what asking for the activation scale raises: a missing one is known before anything is written.
        """
        self._input_scale_of(target)
        stem = target.name.removesuffix("weight")
        return [
            TensorHeader(target.name, FP8, target.shape),
            TensorHeader(f"{stem}weights_scaling_factor", "float32", (target.stacked, 1) if target.stacked else (1,)),
            TensorHeader(f"{stem}activation_scaling_factor", "float32", (1,)),
        ]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the weights, requantised where parts share a scale, then the scales."""
        self._tables.clear()
        scales = [self._shared_scales(target) for target in targets]
        super().write(targets, sinks)
        for target, sink, values in zip(targets, sinks, scales, strict=True):
            if sink is not None:
                sink.append(np.array([*values, self._input_scale_of(target)], dtype=np.float32))

    def encoded(self, bits: NDArray[Any], name: str) -> NDArray[Any]:
        """The bytes as they are, or through the table of the source tensor."""
        return self._tables[name].take(bits) if name in self._tables else bits

    def _shared_scales(self, target: Target) -> list[np.float32]:
        groups = target.stacked or 1
        per_matrix = len(target.slices) // groups
        shared = []
        for first in range(0, len(target.slices), per_matrix):
            own = {p.source: self._own_scale(p.source) for p in target.slices[first : first + per_matrix]}
            largest = max(own.values())
            for name, scale in own.items():
                if scale != largest:
                    self._tables[name] = to_e4m3(E4M3_VALUES * scale / largest)
            shared.append(largest)
        return shared

    def _own_scale(self, source: str) -> np.float32:
        return np.float32(self._scales.weights[self._names[source].removesuffix(".weight")][0])


class CarriedFp8RowwiseEncoder(PlainEncoder):
    """One scale per output row: `weight` and `per_channel_scale` [..., outputs], both cut like the rows."""

    def __init__(self, source: SourceFiles, scales: SourceScales, names: Mapping[str, str]) -> None:
        super().__init__(source, FP8)
        self._scales = scales
        self._names = names

    def headers(self, target: Target) -> list[TensorHeader]:
        """`weight` and `per_channel_scale`."""
        stem = target.name.removesuffix("weight")
        return [
            TensorHeader(target.name, FP8, target.shape),
            TensorHeader(f"{stem}per_channel_scale", "float32", target.shape[:-1]),
        ]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the weights as they are, then the rows' scales."""
        super().write(targets, sinks)
        for target, sink in zip(targets, sinks, strict=True):
            if sink is not None:
                sink.append(np.concatenate([self._rows(piece) for piece in target.slices]))

    def _rows(self, piece: Slice) -> NDArray[np.float32]:
        scale = self._scales.weights[self._names[piece.source].removesuffix(".weight")]
        first, last = piece.columns if piece.transposed and piece.columns else piece.rows
        return scale[first:last] if scale.size > 1 else np.full(last - first, scale[0], dtype=np.float32)
