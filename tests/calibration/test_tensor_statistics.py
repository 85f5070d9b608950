"""Everything that is gathered of a tensor, against NumPy on all of its numbers at once."""

import numpy as np
import pytest
import torch
from trtkit.calibration.statistics import TensorStatistics


def growing(pieces: int, octaves: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Pieces [T, 12] of other lengths, each larger than the one before by as many octaves."""
    random = torch.Generator().manual_seed(3)
    return [
        (torch.randn(17 + 31 * n, 12, generator=random) * 2.0 ** (octaves * n)).to(dtype) for n in range(1, pieces + 1)
    ]


def gathered(pieces: list[torch.Tensor], num_heads: int = 3) -> TensorStatistics:
    statistics = TensorStatistics(12, num_heads)
    for piece in pieces:
        assert statistics.update(piece)
    return statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("octaves", [0.0, 2.0])
def test_a_record_is_what_numpy_finds_also_when_the_range_grows(dtype: torch.dtype, octaves: float) -> None:
    pieces = growing(4, octaves, dtype)
    values = torch.cat(pieces).double().numpy()
    record, magnitudes = gathered(pieces).record(), np.abs(values)
    np.testing.assert_array_equal(record.channel_amax, magnitudes.max(0))
    np.testing.assert_allclose(record.channel_mean, values.mean(0), rtol=1e-9)
    np.testing.assert_allclose(record.channel_mean_abs, magnitudes.mean(0), rtol=1e-9)
    np.testing.assert_allclose(record.channel_mean_square, np.square(values).mean(0), rtol=1e-9)
    np.testing.assert_array_equal(record.head_amax, magnitudes.reshape(-1, 3, 4).max((0, 2)))
    assert (record.num_tokens, record.histogram.total) == (len(values), values.size)
    rel = 0 if dtype == torch.bfloat16 else 2**-7
    for percent in (0.0, 1.0, 50.0, 99.0, 99.9, 100.0):
        exact = np.percentile(magnitudes, percent, method="inverted_cdf")
        assert record.histogram.percentile(percent) == pytest.approx(exact, rel=rel), percent
        for found, wanted in (
            (record.channel_percentile(percent), np.percentile(magnitudes, percent, axis=0, method="inverted_cdf")),
            (
                record.head_percentile(percent),
                np.percentile(magnitudes.reshape(-1, 3, 4), percent, axis=(0, 2), method="inverted_cdf"),
            ),
        ):
            assert np.all(found >= wanted) and np.all(found <= wanted * 1.126), "bins are an eighth of an octave"


def test_percentiles_of_channels_have_no_upper_end() -> None:
    values = torch.full((100, 12), 1e6)
    values[:, 5] = 3e38
    record = gathered([values]).record()
    assert record.channel_percentile(50).tolist() == record.channel_amax.tolist()
    assert record.head_percentile(99).tolist() == record.head_amax.tolist()


def test_channels_are_counted_whatever_the_pieces() -> None:
    values = torch.randn(3000, 12, generator=torch.Generator().manual_seed(5))
    whole = gathered([values], 0).record().channel_counts
    assert whole.sum(1).tolist() == [3000] * 12
    for sizes in ([1] * 3000, [1024, 1024, 952], [2999, 1]):
        np.testing.assert_array_equal(gathered(list(values.split(sizes)), 0).record().channel_counts, whole)


@pytest.mark.parametrize("value", [3.3, 1e37])
def test_means_are_exact_at_any_size(value: float) -> None:
    record = gathered([torch.full((300, 12), value)] * 3).record()
    single = np.float32(value)
    assert record.channel_mean.astype(np.float32).tolist() == [single] * 12
    assert record.channel_mean_abs.astype(np.float32).tolist() == [single] * 12


@pytest.mark.parametrize(
    ("num_tokens", "stride"),
    [(1, 1), (10, 1), (64, 1), (128, 1), (129, 2), (300, 4), (5000, 64), (8192, 64), (8193, 128)],
)
@pytest.mark.parametrize("piece", [1, 37, 10_000])
def test_kept_rows_are_spread_over_all_tokens(num_tokens: int, stride: int, piece: int) -> None:
    """All of a few tokens, as of an expert that few reached, and 64 to 128 of many."""
    values = torch.randn(num_tokens, 3, generator=torch.Generator().manual_seed(0))
    statistics = TensorStatistics(3, 0, 64)
    for start in range(0, num_tokens, piece):
        assert statistics.update(values[start : start + piece])
    np.testing.assert_array_equal(statistics.rows, values.numpy()[::stride])
    assert min(64, num_tokens) <= len(statistics.rows) <= 128


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_not_counted(bad: float) -> None:
    statistics = gathered([torch.ones(4, 12)])
    values = torch.ones(4, 12)
    values[2, 3] = bad
    assert not statistics.update(values)
    assert statistics.record().num_tokens == 4
