"""Two sets of KV scales side by side, layer by layer. Pure; reads no file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

LARGE_FACTOR = 2.0


@dataclass(frozen=True)
class ScaleDifference:
    """One layer: its scale here and there (None where a side has none), the larger one of keys' and values'."""

    layer: int
    here: float | None
    there: float | None

    @property
    def factor(self) -> float | None:
        """there / here: 2 means that there half the codes stay unused, 0.5 that values beyond half saturate."""
        return None if self.here is None or self.there is None else self.there / self.here

    @property
    def is_large(self) -> bool:
        """Whether a side is missing or they differ by more than a factor of two."""
        return self.factor is None or abs(log2(self.factor)) > log2(LARGE_FACTOR)


def compare_scales(
    here: Mapping[int, Sequence[float]], there: Mapping[int, Sequence[float]]
) -> tuple[ScaleDifference, ...]:
    """Every layer of either side. A layer may have several scales, which TensorRT-LLM merges by the maximum."""
    layers = sorted({*here, *there})
    return tuple(ScaleDifference(layer, _merged(here, layer), _merged(there, layer)) for layer in layers)


def _merged(scales: Mapping[int, Sequence[float]], layer: int) -> float | None:
    return max(scales[layer]) if scales.get(layer) else None
