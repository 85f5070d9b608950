"""TensorRecord and LayerRecord: what a pass leaves behind of one layer, in memory and on disk. Runs nothing."""

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtkit.calibration.histogram import Counts, MagnitudeHistogram

# Histograms of single channels: 8 bins per octave from 2^-24 to 2^16.
COARSE_SHIFT, COARSE_FIRST, NUM_COARSE_BINS = 20, (127 - 24) << 3, 40 << 3
NO_CHANNELS: Counts = np.zeros((0, NUM_COARSE_BINS), dtype=np.int64)
KEYS, VALUES = "k", "v"
KEPT, INT4_CACHE = "bfloat16", "int4/cache"  # names of errors: of 16 bits, of the engine's INT4 cache
# What reading a damaged zip file, or one of other members, raises.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, OverflowError, struct.error, zlib.error,
           zipfile.BadZipFile)  # fmt: skip


@dataclass(frozen=True)
class TensorRecord:
    """One tensor over all tokens. C channels, H heads (0: it has none), B bins of histogram.py.

    The input of an expert has no histograms of its channels: there may be hundreds of experts in a layer.

    exact says that the data were bfloat16.
        channel_amax         [C]  max |x|
        channel_mean         [C]  mean x
        channel_mean_abs     [C]  mean |x|
        channel_mean_square  [C]  mean x^2
        counts               [B]  of the whole tensor
        channel_counts       [C, NUM_COARSE_BINS], [0, NUM_COARSE_BINS] where channels are not counted
    """

    num_tokens: int
    num_heads: int
    exact: bool
    channel_amax: NDArray[np.float32]
    channel_mean: NDArray[np.float64]
    channel_mean_abs: NDArray[np.float64]
    channel_mean_square: NDArray[np.float64]
    counts: Counts
    channel_counts: Counts

    @property
    def amax(self) -> float:
        """max |x| of the tensor."""
        return float(self.channel_amax.max(initial=0.0))

    @property
    def head_amax(self) -> NDArray[np.float32]:
        """max |x| of each head: [H]."""
        return np.asarray(self.channel_amax.reshape(max(1, self.num_heads), -1).max(1))

    @cached_property
    def histogram(self) -> MagnitudeHistogram:
        """Of the whole tensor."""
        return MagnitudeHistogram.of(self.counts, exact=self.exact)

    def channel_percentile(self, percent: float) -> NDArray[np.float32]:
        """For each channel [C], never above its maximum; [0] where channels are not counted."""
        amax = self.channel_amax[: len(self.channel_counts)]
        return np.minimum(_coarse_percentile(self.channel_counts, percent), amax)

    def head_percentile(self, percent: float) -> NDArray[np.float32]:
        """For each head [H], never above its maximum; [0] for a tensor without heads."""
        if not self.num_heads:
            return np.zeros(0, np.float32)
        per_head = self.channel_counts.reshape(self.num_heads, -1, NUM_COARSE_BINS).sum(1)
        return np.minimum(_coarse_percentile(per_head, percent), self.head_amax)


def _coarse_percentile(counts: Counts, percent: float) -> NDArray[np.float32]:
    """The percentile of each row of counts [R, NUM_COARSE_BINS], as the upper edge of its bin, which the last one has
    not: [R].
    """
    if not len(counts):
        return np.zeros(0, np.float32)
    cumulative = np.cumsum(counts, axis=1)
    needed = np.maximum(np.ceil(cumulative[:, -1:] * percent / 100), 1)
    index = np.argmax(cumulative >= needed, axis=1)
    edges = ((index + 1 + COARSE_FIRST).astype(np.uint32) << COARSE_SHIFT).view(np.float32)
    edges[index == NUM_COARSE_BINS - 1] = np.inf  # whatever is larger was counted there
    return np.where(cumulative[:, -1] > 0, edges, np.float32(0))


@dataclass(frozen=True)
class LayerRecord:
    """One decoder layer.

    tensors maps "k", "v" and one linear layer of each group that shares an input to its record; modules maps every
    linear layer, named as in the checkpoint, to that name. errors holds measurements by tensor (errors.py).
    """

    layer: int
    tensors: Mapping[str, TensorRecord]
    modules: Mapping[str, str]
    errors: Mapping[str, Mapping[str, float]]

    @property
    def keys(self) -> TensorRecord:
        """The keys as they enter the cache."""
        return self.tensors[KEYS]

    @property
    def values(self) -> TensorRecord:
        """The values as they enter the cache."""
        return self.tensors[VALUES]

    @property
    def inputs(self) -> dict[str, TensorRecord]:
        """The records of linear inputs."""
        return {name: record for name, record in self.tensors.items() if name not in (KEYS, VALUES)}


def write_layer_record(record: LayerRecord, path: Path) -> None:
    """Write beside, flush, rename."""
    arrays: dict[str, Any] = {}
    for name, tensor in record.tensors.items():
        arrays |= {f"{name}/{field.name}": getattr(tensor, field.name) for field in fields(TensorRecord)}
    errors = {name: dict(values) for name, values in record.errors.items()}
    head = {"layer": record.layer, "modules": dict(record.modules), "errors": errors}
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    beside = path.with_suffix(".tmp")
    with beside.open("wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def read_layer_record(path: Path) -> LayerRecord:
    """Read back what write_layer_record wrote; is_whole_record says whether it is still that."""
    with np.load(path, allow_pickle=False) as stored:
        head = json.loads(stored["head"].tobytes())
        grouped: dict[str, dict[str, Any]] = {}
        for key in stored.files:
            name, slash, field = key.rpartition("/")
            if slash:
                array = stored[key]
                grouped.setdefault(name, {})[field] = array.item() if array.ndim == 0 else array
    tensors = {name: TensorRecord(**values) for name, values in grouped.items()}
    return LayerRecord(head["layer"], tensors, head["modules"], head["errors"])


def is_whole_record(path: Path) -> bool:
    """Whether a record is there, with the checksums it was written with, and can be read."""
    try:
        with zipfile.ZipFile(path) as stored:
            if stored.testzip() is not None:
                return False
        read_layer_record(path)
    except _DAMAGE:
        return False
    return True
