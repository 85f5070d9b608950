"""ChannelCounts: how often each magnitude occurs in each channel of a tensor. Counts late, many tokens at a time."""

import numpy as np
from numpy.typing import NDArray

from trtkit.calibration.histogram import Counts
from trtkit.calibration.records import COARSE_FIRST, COARSE_SHIFT, NUM_COARSE_BINS

_TOKENS_AT_ONCE = 1024
_CHANNELS_AT_ONCE = 64  # their counts, 160 KiB, stay in a core's cache


class ChannelCounts:
    """Of C channels, in the bins of records.py. Adding up C histograms for a few tokens costs more than counting them,
    so the bins of up to 1024 tokens are kept first, two bytes each.
    """

    def __init__(self, channels: int) -> None:
        self._counts: Counts = np.zeros((channels, NUM_COARSE_BINS), dtype=np.int64)
        self._pending: list[NDArray[np.uint16]] = []
        self._num_pending = 0

    def add(self, magnitude_bits: NDArray[np.int32]) -> None:
        """Count [T, C] magnitudes, given as the bits of float32 without their signs."""
        bins = np.clip((magnitude_bits >> COARSE_SHIFT) - COARSE_FIRST, 0, NUM_COARSE_BINS - 1)
        self._pending.append(bins.astype(np.uint16))
        self._num_pending += len(bins)
        if self._num_pending >= _TOKENS_AT_ONCE:
            self._count_pending()

    @property
    def counts(self) -> Counts:
        """Of everything that was added: [C, NUM_COARSE_BINS]."""
        if self._pending:
            self._count_pending()
        return self._counts

    def _count_pending(self) -> None:
        bins = np.concatenate(self._pending)
        self._pending.clear()
        self._num_pending = 0
        for first in range(0, len(self._counts), _CHANNELS_AT_ONCE):
            block = self._counts[first : first + _CHANNELS_AT_ONCE]
            index = bins[:, first : first + len(block)] + np.arange(len(block), dtype=np.int32) * NUM_COARSE_BINS
            block += np.bincount(index.ravel(), minlength=block.size).reshape(block.shape)
