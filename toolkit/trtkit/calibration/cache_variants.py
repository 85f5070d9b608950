"""The KV caches whose price is measured: how each stores keys and values, what it keeps, and what it costs in bytes.

Precisions that the reference engine has go through the engine's own formats, codes and all, so that attention reads
what a deployment would read back.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtkit.calibration.errors import quantized, takes_int4_cache
from trtkit.calibration.number_formats import LARGEST, Format
from trtkit.calibration.records import KEYS, VALUES, LayerRecord, TensorRecord
from trtkit.calibration.scales import ScaleMethod, group_scales, scale_of
from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.reference.kv_cache.formats import Format as EngineFormat
from trtkit.reference.kv_cache.formats import Fp8, Int4, Int8, Scale
from trtkit.reference.kv_cache.retention import KEEP_ALL, Retention

Change = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, keys, values), each [1, H, T, D] -> what comes back from the cache."""

GROUP_SIZE = 32
SINK_TOKENS = 4
_LEAST_ROOM = 2


@dataclass(frozen=True)
class CacheVariant:
    """One precision, and what is kept. bytes_per_token: all layers, keys and values, and scales stored with the tokens,
    over the tokens of the longest text.
    """

    name: str
    bytes_per_token: int
    change: Change | None
    retention: Retention = KEEP_ALL


def cache_variants(
    spec: ModelSpec, records: Iterable[LayerRecord], dtype: torch.dtype, method: ScaleMethod
) -> tuple[CacheVariant, ...]:
    """The model's own precision first. dtype: of the model. method: how the limits of fp8 and int8 are chosen.

    fp8-unit has the scale 1.0 that TensorRT-LLM writes without calibration; fp8 and int8 one calibrated scale for keys
    and values, as its engines have; fp8-separate and int8-separate one for each, as the reference engine has. int4 has
    a step and a zero per token for groups of channels, where these fill the heads; int4-groups static scales for them,
    which cost nothing per token and which no engine has.
    """
    measured = list(records)
    heads = (spec.num_kv_heads, spec.head_dim)
    fp8 = [_scales(record, "fp8", method) for record in measured]
    int8 = [_scales(record, "int8", method) for record in measured]
    formats: dict[str, EngineFormat] = {
        "fp8-unit": Fp8(*heads, [Scale(1.0, 1.0)] * len(measured), dtype),
        "fp8": Fp8(*heads, [_shared(scale) for scale in fp8], dtype),
        "fp8-separate": Fp8(*heads, fp8, dtype),
        "int8": Int8(*heads, [_shared(scale) for scale in int8], dtype),
        "int8-separate": Int8(*heads, int8, dtype),
    }
    if takes_int4_cache(spec.head_dim):
        formats["int4"] = Int4(*heads, dtype)
    elements = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    stored = [CacheVariant(name, spec.num_layers * _bytes(kind), _through(kind)) for name, kind in formats.items()]
    return (
        CacheVariant("unquantized", elements * dtype.itemsize, None),
        *stored,
        CacheVariant("int4-groups", elements // 2, _static_groups(measured)),
    )


def bounded_variants(variants: Sequence[CacheVariant], longest: int) -> tuple[CacheVariant, ...]:
    """Half and a quarter of the longest text kept, by a window and by heavy hitters beside a window, after four sinks.

    Both are the engine's own. The unquantised cache gets all of these, the calibrated FP8 cache the windows. None that
    is too small for the sinks, a recent token and a heavy one.
    """
    found = []
    for base in (variant for variant in variants if variant.name in ("unquantized", "fp8")):
        for budget in (longest // 2, longest // 4):
            rest = budget - SINK_TOKENS
            if rest < _LEAST_ROOM:
                continue
            kept = {f"window-{budget}": Retention(rest, SINK_TOKENS)}
            if base.change is None:
                kept[f"heavy-{budget}"] = Retention(rest - rest // 2, SINK_TOKENS, rest // 2)
            prefix = "" if base.change is None else f"{base.name}-"
            for name, retention in kept.items():
                size = base.bytes_per_token * budget // longest
                found.append(CacheVariant(f"{prefix}{name}", size, base.change, retention))
    return tuple(found)


class ChangedCache:
    """Stands where transformers' cache stands and gives back changed keys and values."""

    def __init__(self, layer: int, change: Change | None) -> None:
        self._layer = layer
        self._change = change

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """What attention is to read."""
        return (keys, values) if self._change is None else self._change(self._layer, keys, values)


def _scales(record: LayerRecord, kind: Format, method: ScaleMethod) -> Scale:
    limits = (method.limit(tensor.histogram, tensor.amax, kind) for tensor in (record.keys, record.values))
    return Scale(*(scale_of(limit, kind) for limit in limits))


def _shared(scale: Scale) -> Scale:
    return Scale(max(scale), max(scale))


def _bytes(kind: EngineFormat) -> int:
    """Of one token in one layer."""
    return sum(plane.width * plane.dtype.itemsize for plane in kind.planes)


def _through(kind: EngineFormat) -> Change:
    """Encode every token's row as the engine does, and decode it."""

    def change(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.stack([keys[0], values[0]]).permute(2, 0, 1, 3)  # [T, 2, H, D]
        back = kind.decode(layer, kind.encode(layer, rows.flatten(1))).permute(1, 2, 0, 3)
        return back[0][None].to(keys.dtype), back[1][None].to(values.dtype)

    return change


def _static_groups(records: Iterable[LayerRecord]) -> Change:
    limits: dict[tuple[int, str], Tensor] = {
        (record.layer, name): _group_limits(record.tensors[name]) for record in records for name in (KEYS, VALUES)
    }

    def change(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return _fake(keys, limits[layer, KEYS]), _fake(values, limits[layer, VALUES])

    return change


def _group_limits(record: TensorRecord) -> Tensor:
    """The limit of each channel, that of its group: [H, 1, D]. Groups do not cross heads."""
    by_head = record.channel_amax.reshape(record.num_heads, -1)
    scales = [np.repeat(group_scales(head, GROUP_SIZE, "int4"), GROUP_SIZE)[: head.size] for head in by_head]
    return torch.from_numpy(np.stack(scales) * np.float32(LARGEST["int4"]))[:, None]


def _fake(x: Tensor, limit: Tensor) -> Tensor:
    return quantized(x.float(), limit.to(x.device), "int4").to(x.dtype)
