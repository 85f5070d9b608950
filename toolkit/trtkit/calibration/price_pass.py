"""Measures the price of KV caches: perplexity, and KL divergence from the unquantised whole one, on texts kept apart.

One streaming pass as in collect.py, with the states of every precision side by side, and the head at the end. Every
token is predicted from a cache that went through the precision, the token's own keys and values included. A cache that
leads to NaN or Inf is given up, and the others go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from trtkit.calibration.price import NoPrice, Price, PriceRow
from trtkit.calibration.samples import Sample
from trtkit.calibration.skeleton import FilledLayer, Skeleton
from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.progress import OnProgress, Progress, silent
from trtkit.reference.kv_cache.retention import KEEP_ALL

_LARGEST_LOSS = 700.0  # nats; its exponential is still a float64


def measure_prices(
    checkpoint: Path,
    samples: Sequence[Sample],
    variants: Sequence[CacheVariant],
    options: PassOptions,
    on_progress: OnProgress = silent,
) -> tuple[PriceRow, ...]:
    """Run every variant over the samples; the first must be the unquantised one, which the others are held against.

    A draft that leaves out a part of the vocabulary is judged by the tokens that it can propose.
    """
    assert variants[0].change is None and variants[0].retention == KEEP_ALL, "the first variant is the reference"
    spec = read_model_spec(checkpoint)
    dtype: torch.dtype = getattr(torch, options.dtype)
    ids = [torch.tensor(sample.token_ids) for sample in samples]
    runs = [_Run(variant, [sample.name for sample in samples]) for variant in variants]
    with LayerSource(checkpoint, spec, dtype) as source:
        register()
        is_bounded = takes_bounded_caches(spec)
        attention = IMPLEMENTATION if is_bounded else None
        skeleton = Skeleton(checkpoint, source, dtype, options.device, attention=attention)
        rotations = skeleton.rotations(max(map(len, ids))) if is_bounded else None
        first = skeleton.embed(ids)
        for run in runs:
            run.states = list(first)
        for number in range(spec.num_layers):
            filled = skeleton.filled(number, source.layer(number))
            for run in runs:
                run.through(filled, rotations, options.device)
            filled.release()
            on_progress(Progress("price", number + 1, spec.num_layers, "layers"))
        vocabulary = read_draft_vocabulary(checkpoint, spec.vocab_size)
        skeleton.load_head(vocabulary)
        wanted = [_rows_of(tokens[1:], vocabulary) for tokens in ids]
        for index, rows in enumerate(wanted):
            _predict(runs, skeleton, index, rows)
    return tuple(_priced(run, runs[0], sum(int((rows >= 0).sum()) for rows in wanted)) for run in runs)


def _rows_of(tokens: Tensor, vocabulary: Sequence[int] | None) -> Tensor:
    """The head's row of each token, -1 for one that a draft cannot propose."""
    if vocabulary is None:
        return tokens
    known = torch.tensor(vocabulary)
    place = torch.searchsorted(known, tokens).clamp(max=len(known) - 1)
    return torch.where(known[place] == tokens, place, -1)


@dataclass
class _Totals:
    """Sums over predicted tokens, in float64: of losses, of squared differences from the reference's, of KL."""

    loss: float = 0.0
    squares: float = 0.0
    kl: float = 0.0


class _Run:
    """One variant on its way: the states of the texts [1, T, hidden], sums, and what made it useless, if anything."""

    def __init__(self, variant: CacheVariant, texts: Sequence[str]) -> None:
        self.variant = variant
        self.states: list[Tensor] = []
        self.totals = _Totals()
        self.cause: str | None = None
        self._texts = texts

    def through(self, filled: FilledLayer, rotations: Tensor | None, device: str) -> None:
        """Replace the states by those after the layer."""
        if self.cause is not None:
            return
        cache = ChangedCache(filled.number, self.variant.change)
        if rotations is not None:
            set_cache(filled.layer, BoundedCache(self.variant.retention, rotations))
        for index, state in enumerate(self.states):
            self.states[index] = filled.step(state.to(device), cache).cpu()
            if not self.states[index].isfinite().all():
                return self.give_up(f"layer {filled.number} puts out NaN or Inf", index)

    def give_up(self, what: str, index: int) -> None:
        """Forget the states; `what` happened to the text of that index."""
        self.cause = f"{what} while the text {self._texts[index]!r} runs"
        self.states.clear()


def _predict(runs: Sequence[_Run], skeleton: Skeleton, index: int, wanted: Tensor) -> None:
    """Add one text's tokens to every run's sums; position t predicts the row `wanted[t]`, unless that is -1. The logits
    [T, V] of two runs are in memory whatever their number.
    """
    known = wanted >= 0
    reference: tuple[Tensor, Tensor] | None = None
    for run in runs:
        if run.cause is not None:
            continue
        logits = skeleton.logits(run.states[index])
        if not logits.isfinite().all():
            run.give_up("the logits are NaN or Inf", index)
            continue
        found = torch.log_softmax(logits[:-1][known].double(), -1)
        loss = -found.gather(1, wanted[known, None])
        if run is runs[0]:
            reference = found, loss
        if reference is None:
            continue
        exact, least = reference
        run.totals.loss += float(loss.sum())
        run.totals.squares += float((loss - least).square().sum())
        run.totals.kl += float((exact.exp() * (exact - found)).sum())


def _priced(run: _Run, reference: _Run, num_tokens: int) -> PriceRow:
    """Means. The standard error is that of the differences between the run's loss and the reference's."""
    name, size = run.variant.name, run.variant.bytes_per_token
    if reference.cause is not None and run is not reference:
        why = f"there is nothing to hold it against: with the cache {reference.variant.name}, {reference.cause}"
        return NoPrice(name, size, run.cause or why)
    if run.cause is not None:
        return NoPrice(name, size, run.cause)
    if not num_tokens:
        return NoPrice(name, size, "no token of the held-out texts is one that this draft can propose", "CALIB-TINY")
    loss, kl, squares = (total / num_tokens for total in (run.totals.loss, run.totals.kl, run.totals.squares))
    if loss > _LARGEST_LOSS:
        return NoPrice(name, size, f"tokens cost {loss:.0f} nats each: a perplexity beyond all numbers")
    mean = loss - reference.totals.loss / num_tokens
    error = (max(0.0, squares - mean**2) / num_tokens) ** 0.5
    # Rounding of the sums may leave the divergence a hair below zero.
    return Price(name, size, exp(loss), max(0.0, kl), exp(loss) * error)
