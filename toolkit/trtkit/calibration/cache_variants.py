"""The KV caches whose price is measured: how each changes keys and values, what it keeps, and what it costs in bytes.

They are applied to what a layer puts into its cache, so that attention reads what a deployment would read back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtkit.calibration.bounded_attention import Bound
from trtkit.calibration.errors import quantized
from trtkit.calibration.number_formats import LARGEST, Format
from trtkit.calibration.records import KEYS, VALUES, LayerRecord, TensorRecord
from trtkit.calibration.scales import group_scales
from trtkit.checkpoints.model_spec import ModelSpec

Change = Callable[[int, str, Tensor], Tensor]
"""(layer, "k" or "v", tensor [1, H, T, D]) -> what comes back from the cache."""

_BITS: Mapping[Format, int] = {"fp8": 8, "int8": 8, "int4": 4}
_DYNAMIC_SCALE_BITS = 16
GROUP_SIZE = 32
SINK_TOKENS = 4


@dataclass(frozen=True)
class CacheVariant:
    """One precision, and what is kept. bytes_per_token: all layers, keys and values, and scales stored with the tokens,
    over the tokens of the longest text.
    """

    name: str
    bytes_per_token: int
    change: Change | None
    bound: Bound | None = None


def cache_variants(spec: ModelSpec, records: Iterable[LayerRecord], itemsize: int) -> tuple[CacheVariant, ...]:
    """The model's own precision first; limits are the measured maxima. itemsize: bytes of the model's dtype.

    fp8-unit has the scale 1.0 that TensorRT-LLM writes without calibration; fp8 one calibrated scale for keys and
    values, as its engines have; fp8-separate one for each. int4 has a scale per token and head; int4-groups static ones
    for groups of channels, which cost nothing per token.
    """
    own: dict[str, dict[int, float]] = {KEYS: {}, VALUES: {}}
    groups: dict[str, dict[int, Tensor]] = {KEYS: {}, VALUES: {}}
    for record in records:
        for name in (KEYS, VALUES):
            own[name][record.layer] = record.tensors[name].amax
            groups[name][record.layer] = _group_limits(record.tensors[name])
    shared = {layer: max(own[KEYS][layer], own[VALUES][layer]) for layer in own[KEYS]}

    def per_layer(kind: Format) -> Change:
        return lambda layer, _, x: _through(x, torch.tensor(shared[layer]), kind)

    def unit(_: int, __: str, x: Tensor) -> Tensor:
        return _through(x, torch.tensor(LARGEST["fp8"]), "fp8")

    def separate(layer: int, name: str, x: Tensor) -> Tensor:
        return _through(x, torch.tensor(own[name][layer]), "fp8")

    def per_token(_: int, __: str, x: Tensor) -> Tensor:
        return _through(x, x.float().abs().amax(-1, keepdim=True), "int4")

    def per_group(layer: int, name: str, x: Tensor) -> Tensor:
        return _through(x, groups[name][layer], "int4")

    return (
        CacheVariant("unquantized", _bytes(spec, 8 * itemsize), None),
        CacheVariant("fp8-unit", _bytes(spec, _BITS["fp8"]), unit),
        CacheVariant("fp8", _bytes(spec, _BITS["fp8"]), per_layer("fp8")),
        CacheVariant("fp8-separate", _bytes(spec, _BITS["fp8"]), separate),
        CacheVariant("int8", _bytes(spec, _BITS["int8"]), per_layer("int8")),
        CacheVariant("int4", _bytes(spec, _BITS["int4"], _DYNAMIC_SCALE_BITS), per_token),
        CacheVariant("int4-groups", _bytes(spec, _BITS["int4"]), per_group),
    )


def bounded_variants(variants: Sequence[CacheVariant], longest: int) -> tuple[CacheVariant, ...]:
    """Half and a quarter of the longest text kept, by a window and by heavy hitters beside a window, after four sinks.

    The unquantised cache gets all of these, the calibrated FP8 cache the windows.
    """
    found = []
    for base in (variant for variant in variants if variant.name in ("unquantized", "fp8")):
        for budget in (longest // 2, longest // 4):
            rest = max(2, budget - SINK_TOKENS)
            bounds = {f"window-{budget}": Bound(rest, SINK_TOKENS)}
            if base.change is None:
                bounds[f"heavy-{budget}"] = Bound(rest - rest // 2, SINK_TOKENS, rest // 2)
            prefix = "" if base.change is None else f"{base.name}-"
            for name, bound in bounds.items():
                size = base.bytes_per_token * min(bound.budget_tokens, longest) // longest
                found.append(CacheVariant(f"{prefix}{name}", size, base.change, bound))
    return tuple(found)


class ChangedCache:
    """Stands where transformers' cache stands and gives back changed keys and values."""

    def __init__(self, layer: int, change: Change | None) -> None:
        self._layer = layer
        self._change = change

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """What attention is to read."""
        if self._change is None:
            return keys, values
        return self._change(self._layer, "k", keys), self._change(self._layer, "v", values)


def _group_limits(record: TensorRecord) -> Tensor:
    """The limit of each channel, that of its group: [H, 1, D]. Groups do not cross heads."""
    by_head = record.channel_amax.reshape(record.num_heads, -1)
    scales = [np.repeat(group_scales(head, GROUP_SIZE, "int4"), GROUP_SIZE)[: head.size] for head in by_head]
    return torch.from_numpy(np.stack(scales) * np.float32(LARGEST["int4"]))[:, None]


def _through(x: Tensor, limit: Tensor, kind: Format) -> Tensor:
    return quantized(x.float(), limit.to(x.device), kind).to(x.dtype)


def _bytes(spec: ModelSpec, bits: int, bits_per_head: int = 0) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * (spec.head_dim * bits + bits_per_head) // 8
