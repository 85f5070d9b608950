"""The scales of a quantised KV cache, written beside each layer's qkv. Knows the numbers, measures none.

kv_cache_scaling_factor s dequantises (x = q * s), kv_cache_rcp_scaling_factor is 1 / s; both float32 [1]. Every release
of TensorRT-LLM reads the first; older ones want the second too, newer ones compute it, so writing both is right
everywhere. Keys and values that were measured have k_cache_ and v_cache_scaling_factor besides, as nvidia-modelopt
writes them: newer releases of TensorRT-LLM merge the two by their maximum, which is s again, earlier ones warn of
tensors that they do not need, and trtkit's reference engine quantises keys and values with them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trtkit.conversion.casting import E4M3_MAX
from trtkit.conversion.encoder import Encoder, Sinks
from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import TensorHeader


class KvScale(NamedTuple):
    """What the codes of a layer's keys and values are multiplied by; value None: one scale for both is all there is."""

    key: float
    value: float | None = None

    def tensors(self) -> dict[str, np.float32]:
        """The factors by their names below `attention.`, in the order in which they are stored."""
        shared = np.float32(self.key if self.value is None else max(self.key, self.value))
        merged = {"kv_cache_scaling_factor": shared, "kv_cache_rcp_scaling_factor": np.float32(1.0) / shared}
        if self.value is None:
            return merged
        own = {"k_cache_scaling_factor": np.float32(self.key), "v_cache_scaling_factor": np.float32(self.value)}
        return merged | own


ScaleOf = Callable[[int], KvScale]
"""Layer -> scales."""

LARGEST = {"fp8": E4M3_MAX, "int8": 127.0}


class WithKvScales:
    """Wraps the encoder of a layer's qkv weight and appends the layer's KV scales."""

    def __init__(self, inner: Encoder, scale_of: ScaleOf) -> None:
        self._inner = inner
        self._scale_of = scale_of

    def headers(self, target: Target) -> list[TensorHeader]:
        """The inner tensors, then the scales. Raises what asking for the scales raises."""
        stem = target.name.removesuffix("qkv.weight")
        scales = [TensorHeader(f"{stem}{name}", "float32", (1,)) for name in self._scale_of(target.layer).tensors()]
        return [*self._inner.headers(target), *scales]

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append the inner tensors and the scales; every rank gets the same scales."""
        self._inner.write(targets, sinks)
        for target, sink in zip(targets, sinks, strict=True):
            if sink is not None:
                sink.append(np.array(list(self._scale_of(target.layer).tensors().values()), dtype=np.float32))
