"""Measures the price of KV caches: perplexity, and KL divergence from the unquantised whole one, on texts kept apart.

One streaming pass as in collect.py, with the states of every precision side by side, and the head at the end. Every
token is predicted from a cache that went through the precision, the token's own keys and values included.
"""

from collections.abc import Iterable, Sequence
from math import exp
from pathlib import Path

import torch
from torch import Tensor

from trtkit.calibration.bounded_attention import (
    IMPLEMENTATION,
    BoundedCache,
    register,
    set_cache,
    takes_bounded_caches,
)
from trtkit.calibration.cache_variants import CacheVariant, ChangedCache
from trtkit.calibration.collect import PassOptions
from trtkit.calibration.layer_source import LayerSource
from trtkit.calibration.price import Price
from trtkit.calibration.samples import Sample
from trtkit.calibration.skeleton import Skeleton
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.errors import InputError
from trtkit.progress import OnProgress, Progress, silent
from trtkit.reference.kv_cache.retention import KEEP_ALL

_LARGEST_LOSS = 700.0  # nats; its exponential is still a float64


def measure_prices(
    checkpoint: Path,
    samples: Sequence[Sample],
    variants: Sequence[CacheVariant],
    options: PassOptions,
    on_progress: OnProgress = silent,
) -> tuple[Price, ...]:
    """Run every variant over the samples; the first must be the unquantised one, which the others are held against.

    Raises InputError CALIB-NONFINITE that names cache and text when logits are NaN or Inf.
    """
    assert variants[0].change is None and variants[0].retention == KEEP_ALL, "the first variant is the reference"
    spec = read_model_spec(checkpoint)
    dtype: torch.dtype = getattr(torch, options.dtype)
    ids = [torch.tensor(sample.token_ids) for sample in samples]
    with LayerSource(checkpoint, spec, dtype) as source:
        register()
        is_bounded = takes_bounded_caches(spec)
        attention = IMPLEMENTATION if is_bounded else None
        skeleton = Skeleton(checkpoint, source, dtype, options.device, attention=attention)
        rotations = skeleton.rotations(max(map(len, ids))) if is_bounded else None
        first = skeleton.embed(ids)
        states = [list(first) for _ in variants]
        for number in range(spec.num_layers):
            filled = skeleton.filled(number, source.layer(number))
            for variant, own in zip(variants, states, strict=True):
                cache = ChangedCache(number, variant.change)
                if rotations is not None:
                    set_cache(filled.layer, BoundedCache(variant.retention, rotations))
                own[:] = [filled.step(state.to(options.device), cache).cpu() for state in own]
            filled.release()
            on_progress(Progress("price", number + 1, spec.num_layers, "layers"))
        totals = _Totals(len(variants))
        skeleton.load_head()
        for index, tokens in enumerate(ids):
            pairs = zip(variants, states, strict=True)
            totals.add((_finite(skeleton.logits(own[index]), v.name, samples[index].name) for v, own in pairs), tokens)
    return tuple(
        _price(variant, loss, kl, error)
        for variant, loss, kl, error in zip(
            variants, totals.losses(), totals.divergences(), totals.errors(), strict=True
        )
    )


def _price(variant: CacheVariant, loss: float, kl: float, error: float) -> Price:
    if loss > _LARGEST_LOSS:
        raise InputError(
            f"with the cache {variant.name}, tokens cost {loss:.0f} nats each: a perplexity beyond all numbers",
            "leave out --price; the model does not predict these texts (another tokenizer, damaged weights)",
            code="CALIB-NONFINITE",
        )
    return Price(variant.name, variant.bytes_per_token, exp(loss), kl, exp(loss) * error)


def _finite(logits: Tensor, cache: str, text: str) -> Tensor:
    if not logits.isfinite().all():
        raise InputError(
            f"with the cache {cache}, logits are NaN or Inf while the text {text!r} runs",
            "try --dtype float32; if it stays, leave out --price",
            code="CALIB-NONFINITE",
        )
    return logits


class _Totals:
    """Sums over predicted tokens, in float64."""

    def __init__(self, num_variants: int) -> None:
        self._loss = [0.0] * num_variants
        self._squares = [0.0] * num_variants
        self._kl = [0.0] * num_variants
        self._tokens = 0

    def add(self, logits: Iterable[Tensor], tokens: Tensor) -> None:
        """T tokens, V vocabulary: logits of each variant [T, V], one after the other, so that two of them are in memory
        whatever their number; position t predicts token t + 1.
        """
        self._tokens += len(tokens) - 1
        for index, own in enumerate(logits):
            found = torch.log_softmax(own[:-1].double(), -1)
            loss = -found.gather(1, tokens[1:, None])
            if index == 0:
                reference, exact = found, loss
            self._loss[index] += float(loss.sum())
            self._squares[index] += float((loss - exact).square().sum())
            self._kl[index] += float((reference.exp() * (reference - found)).sum())

    def losses(self) -> list[float]:
        """Mean negative log-likelihood."""
        return [loss / max(1, self._tokens) for loss in self._loss]

    def errors(self) -> list[float]:
        """Standard errors of the differences between each variant's loss and the first one's."""
        count = max(1, self._tokens)
        means = [loss - self.losses()[0] for loss in self.losses()]
        return [
            (max(0.0, squares / count - mean**2) / count) ** 0.5
            for squares, mean in zip(self._squares, means, strict=True)
        ]

    def divergences(self) -> list[float]:
        """Mean KL; rounding of the sums may leave it a hair below zero."""
        return [max(0.0, kl / max(1, self._tokens)) for kl in self._kl]
