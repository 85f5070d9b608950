"""The scales of a quantised KV cache, written beside each layer's qkv. Knows the numbers, measures none.

kv_cache_scaling_factor s dequantises (x = q * s), kv_cache_rcp_scaling_factor is 1 / s; both float32 [1]. Every release
reads the first; older ones want the second too, newer ones compute it, so writing both is right everywhere.
"""

from collections.abc import Callable, Sequence

import numpy as np

from trtkit.conversion.casting import E4M3_MAX
from trtkit.conversion.encoder import Encoder, Sinks
from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import TensorHeader

ScaleOf = Callable[[int], float]
"""Layer -> scale."""

LARGEST = {"fp8": E4M3_MAX, "int8": 127.0}


class WithKvScales:
    """Wraps the encoder of a layer's qkv weight and appends the layer's two KV scales."""

    def __init__(self, inner: Encoder, scale_of: ScaleOf) -> None:
        self._inner = inner
        self._scale_of = scale_of

    def headers(self, target: Target) -> list[TensorHeader]:
        """The inner tensors, then the two scales. Raises what asking for the scale raises."""
        self._scale_of(target.layer)
        stem = target.name.removesuffix("qkv.weight")
        names = (f"{stem}kv_cache_scaling_factor", f"{stem}kv_cache_rcp_scaling_factor")
        return [*self._inner.headers(target), *(TensorHeader(name, "float32", (1,)) for name in names)]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the inner tensors and the scales; every rank gets the same scales."""
        self._inner.write(targets, sinks)
        for target, sink in zip(targets, sinks, strict=True):
            if sink is not None:
                scale = np.float32(self._scale_of(target.layer))
                sink.append(np.array([scale, np.float32(1.0) / scale], dtype=np.float32))
