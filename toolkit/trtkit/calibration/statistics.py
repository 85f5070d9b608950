"""TensorStatistics: gathers a TensorRecord from pieces of a tensor. Knows channels, not where the tensor is from.

Everything is read off the bits of float32, so maxima and counts are exact and do not depend on the order of samples.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtkit.calibration.channel_counts import ChannelCounts
from trtkit.calibration.histogram import NUM_BINS, Counts, bins_of
from trtkit.calibration.records import NO_CHANNELS, TensorRecord

KEPT_TOKENS = 256
"""At least so many rows are kept of a tensor with as many tokens, and at most twice as many."""


class TensorStatistics:
    """C channels; num_heads divides them into heads, 0 for a tensor without heads. by_channel: with their histograms.

    Besides the record it keeps `rows`, every n-th token, for measuring errors: all of fewer than `kept_tokens`, and of
    more tokens at least so many: [at most 2 * kept_tokens, C].
    """

    def __init__(
        self, channels: int, num_heads: int, kept_tokens: int = KEPT_TOKENS, *, by_channel: bool = True
    ) -> None:
        self._num_heads = num_heads
        self._num_tokens = 0
        self._exact = True
        self._amax_bits = np.zeros(channels, dtype=np.int32)
        self._sum = np.zeros(channels, dtype=np.float64)
        self._sum_abs = np.zeros(channels, dtype=np.float64)
        self._sum_squares = np.zeros(channels, dtype=np.float64)
        self._counts: Counts = np.zeros(NUM_BINS, dtype=np.int64)
        self._channel_counts = ChannelCounts(channels) if by_channel else None
        self._kept_tokens = kept_tokens
        self._stride = 1
        self._rows: list[NDArray[np.float32]] = []

    def update(self, x: Tensor) -> bool:
        """Count x [T, C]. False when it holds NaN or Inf; it is then not counted."""
        wide = x.detach().to(device="cpu", dtype=torch.float32).contiguous()
        magnitude = wide.view(torch.int32).numpy() & np.int32(0x7FFFFFFF)
        amax_bits = magnitude.max(axis=0, initial=0)
        if (amax_bits >= 0x7F800000).any():
            return False
        self._exact = self._exact and x.dtype == torch.bfloat16
        np.maximum(self._amax_bits, amax_bits, out=self._amax_bits)
        self._counts += np.bincount(bins_of(magnitude).ravel(), minlength=NUM_BINS)
        if self._channel_counts is not None:
            self._channel_counts.add(magnitude)
        values = wide.numpy()
        self._sum += values.sum(0, dtype=np.float64)
        self._sum_abs += magnitude.view(np.float32).sum(0, dtype=np.float64)
        self._sum_squares += np.einsum("tc,tc->c", values, values, dtype=np.float64)
        self._keep(values)
        self._num_tokens += wide.shape[0]
        return True

    def _keep(self, values: NDArray[np.float32]) -> None:
        """Keep every n-th row, and every second of what is kept when that becomes too many."""
        self._rows.append(values[-self._num_tokens % self._stride :: self._stride].copy())
        while sum(map(len, self._rows)) > 2 * self._kept_tokens:
            self._rows = [np.concatenate(self._rows)[::2].copy()]
            self._stride *= 2

    @property
    def rows(self) -> NDArray[np.float32]:
        """The kept tokens."""
        return np.concatenate(self._rows)

    def record(self) -> TensorRecord:
        """What was counted so far."""
        return TensorRecord(
            num_tokens=self._num_tokens,
            num_heads=self._num_heads,
            exact=self._exact,
            channel_amax=self._amax_bits.view(np.float32).copy(),
            channel_mean=self._sum / max(1, self._num_tokens),
            channel_mean_abs=self._sum_abs / max(1, self._num_tokens),
            channel_mean_square=self._sum_squares / max(1, self._num_tokens),
            counts=self._counts,
            channel_counts=NO_CHANNELS if self._channel_counts is None else self._channel_counts.counts,
        )
