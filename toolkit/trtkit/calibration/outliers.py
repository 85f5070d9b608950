"""Outliers: which tensors one shared scale serves badly, and what to do about each. Pure; measures nothing itself.

Everything is judged by noise, a cache's by that of its own scales (cache_noise.py), a linear input's as it was measured
(errors.py); ratios, bits and channels explain it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtkit.calibration.cache_noise import cache_noise
from trtkit.calibration.number_formats import LARGEST, Format
from trtkit.calibration.records import INT4_CACHE, KEPT, KEYS, VALUES, LayerRecord, TensorRecord

CacheAdvice = Literal["fp8", "int8", "int4", "keep"]
InputAdvice = Literal["fp8", "per-token", "smooth", "keep"]

# Rounding alone costs e4m3 about 2.6 % of a tensor without outliers (a step of 1/8, errors uniform).
NOISE_LIMIT = 0.10
_OUTLIER_CHANNEL = 6.0
_SHOWN_CHANNELS = 5


@dataclass(frozen=True)
class OutlierChannel:
    """A channel far above the others.

    share is mean |x| over max |x|: near 0 for spikes at a few tokens. high is its 99.9th percentile: nine hundred and
    ninety-nine of a thousand tokens stay below; None for the input of an expert.
    """

    head: int
    channel: int
    amax: float
    times_median: float
    share: float
    high: float | None


@dataclass(frozen=True)
class TensorOutliers:
    """What one tensor is like.

    ratio      amax over the 99.9th percentile: 1 is none, 10 means that one in a thousand costs the rest 3 bits; where
               that is zero, over the percentile of the others
    bulk_bits  of the 8 bits of an integer code, how many nine tenths of the numbers make use of under one scale
    """

    name: str
    amax: float
    ratio: float
    bulk_bits: float
    channels: tuple[OutlierChannel, ...]


@dataclass(frozen=True)
class Advice:
    """What to do about one tensor (`module` is "k", "v" or a linear layer) and the noise without and with it."""

    layer: int
    module: str
    action: str
    noise: float
    noise_then: float


@dataclass(frozen=True)
class LayerOutliers:
    """One layer: its tensors, the errors that were measured of each ("<format>/<granularity>"), and the advice."""

    layer: int
    tensors: tuple[TensorOutliers, ...]
    errors: Mapping[str, Mapping[str, float]]
    advice: tuple[Advice, ...]

    def of(self, name: str) -> TensorOutliers:
        """The tensor heard under `name`."""
        return next(tensor for tensor in self.tensors if tensor.name == name)


def judge_layer(record: LayerRecord, cache: Format, scale: float | None) -> LayerOutliers:
    """Describe and advise on one layer. The record needs its errors measured.

    cache: the format of the cache; scale: that of its keys and values, None for INT4, whose steps are each token's own.
    """
    tensors = tuple(describe(name, tensor) for name, tensor in record.tensors.items())
    advice = [_cache_advice(record, name, cache, scale) for name in (KEYS, VALUES)]
    advice += [_input_advice(record, name) for name in record.inputs]
    return LayerOutliers(record.layer, tensors, record.errors, tuple(advice))


def describe(name: str, tensor: TensorRecord) -> TensorOutliers:
    """Ratios, bits and outlier channels of one tensor."""
    amax = tensor.amax
    # A bin stands for its middle, which may lie above the largest number in it.
    high, bulk = (min(tensor.histogram.percentile(percent), amax) for percent in (99.9, 90))
    high = high or min(tensor.histogram.without_zeros().percentile(99.9), amax)
    return TensorOutliers(
        name=name,
        amax=amax,
        ratio=amax / high if high > 0 else 1.0,
        bulk_bits=float(np.log2(max(2 * LARGEST["int8"] * bulk / amax, 1.0))) if amax > 0 else 8.0,
        channels=outlier_channels(tensor),
    )


def outlier_channels(tensor: TensorRecord) -> tuple[OutlierChannel, ...]:
    """The channels whose maximum is far above the median channel's, largest first. Channels of zeros do not count."""
    alive = tensor.channel_amax[tensor.channel_amax > 0]
    if not alive.size:
        return ()
    median = float(np.median(alive))
    per_head = tensor.channel_amax.size // max(1, tensor.num_heads)
    order = np.argsort(-tensor.channel_amax, kind="stable")[:_SHOWN_CHANNELS]
    found = [index for index in order if tensor.channel_amax[index] > _OUTLIER_CHANNEL * median]
    high = tensor.channel_percentile(99.9) if found else tensor.channel_amax[:0]
    return tuple(
        OutlierChannel(
            head=int(index // per_head),
            channel=int(index % per_head),
            amax=float(tensor.channel_amax[index]),
            times_median=float(tensor.channel_amax[index] / median),
            share=float(tensor.channel_mean_abs[index] / tensor.channel_amax[index]),
            high=float(high[index]) if high.size else None,
        )
        for index in found
    )


def overall_cache_advice(layers: Sequence[LayerOutliers], cache: Format) -> tuple[CacheAdvice, str]:
    """One advice for the whole cache, as an engine has one cache dtype for all layers, and the reason in words."""
    advice = [item for layer in layers for item in layer.advice if item.module in (KEYS, VALUES)]
    bad = [item for item in advice if item.action == "keep"]
    worst = max(advice, key=lambda item: item.noise)
    what = {KEYS: "keys", VALUES: "values"}[worst.module]
    figure = f"the {what} of layer {worst.layer} get {in_percent(worst.noise)} noise"
    if not bad:
        return cache, f"an {cache.upper()} cache is fine: at worst {figure}"
    count = f"{len(bad)} tensors exceed" if len(bad) > 1 else "it alone exceeds"
    why = f"{figure} in {cache.upper()} ({count} {NOISE_LIMIT:.0%})"
    by_layer = {layer.layer: layer.errors for layer in layers}
    with_amax = max(by_layer[item.layer][item.module][f"{cache}/shared"] for item in bad)
    if cache != "int4" and with_amax <= NOISE_LIMIT:
        why = f"{why}; the scales cut too much: with --method amax it is at most {with_amax:.1%}"
    return "keep", f"keep the KV cache in the model's dtype: {why}"


def in_percent(noise: float) -> str:
    """A noise as it is shown."""
    return f"{noise:.1%}" if math.isfinite(noise) else "infinite"


def _cache_advice(record: LayerRecord, name: str, cache: Format, scale: float | None) -> Advice:
    errors = record.errors[name]
    if scale is None:
        noise = errors.get(INT4_CACHE, errors["int4/token"])
    else:
        noise = cache_noise(record.tensors[name], scale, cache)
    keep = noise > NOISE_LIMIT
    return Advice(record.layer, name, "keep" if keep else cache, noise, errors[KEPT] if keep else noise)


def _input_advice(record: LayerRecord, name: str) -> Advice:
    """The first of: FP8 with one scale, one scale per token, smoothing, 16 bits, that stays below the limit."""
    errors = record.errors[name]
    noise = errors["fp8/tensor"]
    choices: tuple[tuple[InputAdvice, float], ...] = (
        ("fp8", noise),
        ("per-token", errors["fp8/token"]),
        ("smooth", errors["fp8/smooth"]),
        ("keep", errors[KEPT]),
    )
    action, then = next(choice for choice in choices if choice[1] <= NOISE_LIMIT or choice[0] == "keep")
    return Advice(record.layer, name, action, noise, then)
