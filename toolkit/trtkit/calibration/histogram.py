"""MagnitudeHistogram: how often each magnitude occurs, in the bins of bfloat16. Pure numpy; knows no model.

A bin is the sign-free upper half of a float32: 8 exponent and 7 mantissa bits, so bin widths are 1/128 of an octave's
start, for every magnitude, with no range to choose in advance. Of bfloat16 data each bin holds exactly one value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 1 << 15
_INFINITY_BIN = 0x7F80
Counts = NDArray[np.int64]


def bins_of(magnitude_bits: NDArray[np.int32]) -> NDArray[np.int32]:
    """The bin of each magnitude, given as the bits of a float32 without its sign."""
    return magnitude_bits >> 16


def bin_starts() -> NDArray[np.float32]:
    """The smallest magnitude of every bin: [NUM_BINS]; from _INFINITY_BIN on they are no finite numbers."""
    return (np.arange(NUM_BINS, dtype=np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class MagnitudeHistogram:
    """The occupied bins of one tensor, smallest magnitude first.

    values  [B]  the magnitude that stands for the bin: its start for bfloat16 data, else its middle
    counts  [B]  how many numbers fell into it
    widths  [B]  its width
    """

    values: NDArray[np.float64]
    counts: Counts
    widths: NDArray[np.float64]

    @classmethod
    def of(cls, counts: Counts, *, exact: bool) -> "MagnitudeHistogram":
        """From counts over all bins [NUM_BINS]; `exact` says that the data were bfloat16."""
        occupied = np.flatnonzero(counts[:_INFINITY_BIN])
        starts = bin_starts()
        first, last = starts[occupied].astype(np.float64), starts[occupied + 1].astype(np.float64)
        widths = np.where(np.isfinite(last), last - first, first / 128)
        return cls(first if exact else first + widths / 2 * (occupied > 0), counts[occupied], widths)

    @property
    def total(self) -> int:
        """How many numbers were counted."""
        return int(self.counts.sum())

    def without_zeros(self) -> "MagnitudeHistogram":
        """The same of the numbers that are not zero."""
        kept = self.values > 0
        return MagnitudeHistogram(self.values[kept], self.counts[kept], self.widths[kept])

    def percentile(self, percent: float) -> float:
        """The smallest bin value that at least `percent` of the magnitudes do not exceed; 0 when there is none."""
        if not self.total:
            return 0.0
        needed = np.ceil(self.total * percent / 100)
        return float(self.values[np.searchsorted(np.cumsum(self.counts), max(needed, 1))])
