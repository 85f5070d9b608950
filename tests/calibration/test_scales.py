"""Number formats, histograms and the ways to a scale, on numbers that can be checked by hand or by torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trtkit.calibration.histogram import NUM_BINS, MagnitudeHistogram
from trtkit.calibration.number_formats import LARGEST, fake_quantize
from trtkit.calibration.scales import METHODS, ScaleMethod, group_scales, scale_of
from trtkit.calibration.statistics import TensorStatistics
from trtkit.reference.kv_cache.formats import Fp8, Scale


def histogram_of(values: np.ndarray) -> MagnitudeHistogram:
    """Of float32 values."""
    bins = np.abs(values).astype(np.float32).view(np.uint32) >> 16
    return MagnitudeHistogram.of(np.bincount(bins, minlength=NUM_BINS), exact=False)


@given(st.floats(-500, 500, width=32))
def test_fp8_rounds_as_torch_does(value: float) -> None:
    expected = float(torch.tensor(value).clamp(-448, 448).to(torch.float8_e4m3fn).float())
    assert fake_quantize(np.array(value), 1.0, "fp8") == expected


def test_integers_round_to_even_and_saturate() -> None:
    values = np.array([0.25, 0.75, 63.4, 80.0, -80.0])
    assert fake_quantize(values, 0.5, "int8").tolist() == [0.0, 1.0, 63.5, 63.5, -63.5]


def test_bfloat16_data_has_exact_bins() -> None:
    values = torch.tensor([0.1, 3.7, 250.0]).bfloat16().float().numpy()
    bins = values.view(np.uint32) >> 16
    histogram = MagnitudeHistogram.of(np.bincount(bins, minlength=NUM_BINS), exact=True)
    assert histogram.values.tolist() == values.tolist()
    assert histogram.percentile(100) == 250.0
    assert histogram.percentile(50) == float(values[1])


def test_amax_divides_by_the_largest_code() -> None:
    limit = ScaleMethod("amax").limit(histogram_of(np.array([1.0, -896.0])), 896.0, "fp8")
    assert scale_of(limit, "fp8") == 2.0
    assert scale_of(254.0, "int8") == 2.0
    assert scale_of(0.0, "fp8") == 1.0, "any scale represents zeros"


def test_percentile_lets_the_rest_saturate() -> None:
    values = np.concatenate([np.full(999, 1.0), [100.0]])
    method = ScaleMethod("percentile", 99.0)
    assert method.limit(histogram_of(values), 100.0, "int8") == pytest.approx(1.0, rel=2**-7)
    assert ScaleMethod("percentile", 100.0).limit(histogram_of(values), 100.0, "int8") == pytest.approx(100, rel=2**-7)


def test_int8_gives_up_a_lone_outlier() -> None:
    values = np.random.RandomState(0).standard_normal(200_000)
    values[0] = 30.0
    # A limit t costs n (t/127)^2 / 12 in rounding and (30 - t)^2 for the outlier: least at t = 30 / (1 + n/12/127^2).
    best = 30 / (1 + 200_000 / 12 / 127**2)
    assert ScaleMethod("mse").limit(histogram_of(values), 30.0, "int8") == pytest.approx(best, rel=0.04)
    assert 3.0 < ScaleMethod("entropy").limit(histogram_of(values), 30.0, "int8") < 15.0


def test_mse_is_never_worse_than_amax() -> None:
    values = np.random.RandomState(1).standard_t(3, size=50_000)
    amax = float(np.abs(values).max())
    for kind in LARGEST:
        errors = []
        for name in ("amax", "mse"):
            scale = scale_of(ScaleMethod(name).limit(histogram_of(values), amax, kind), kind)
            errors.append(np.square(fake_quantize(values, scale, kind) - values).mean())
        assert errors[1] <= errors[0] * (1 + 1e-3), kind


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "spikes", "one sided"])
def test_the_mse_limit_is_the_best_one_for_the_numbers_themselves(shape: str, dtype: torch.dtype, kind: Any) -> None:
    """Against torch's own rounding of every number, without a histogram."""
    random = np.random.RandomState(5)
    drawn = {
        "normal": random.standard_normal((3000, 8)),
        "heavy tails": random.standard_t(3, (3000, 8)),
        "spikes": np.where(random.rand(3000, 8) < 0.01, 50, 1) * random.standard_normal((3000, 8)),
        "one sided": random.exponential(size=(3000, 8)) ** 2,
    }
    values = torch.from_numpy(drawn[shape].astype(np.float32)).to(dtype)
    statistics = TensorStatistics(8, 2)
    statistics.update(values)
    record, exact = statistics.record(), values.double()

    def cost(limit: float) -> float:
        scaled = (exact / (limit / LARGEST[kind])).clamp(-LARGEST[kind], LARGEST[kind])
        codes = scaled.to(torch.float8_e4m3fn).double() if kind == "fp8" else scaled.round()
        return float((codes * (limit / LARGEST[kind]) - exact).square().sum())

    best = min(cost(record.amax * share) for share in np.geomspace(1, 1 / 32, 128))
    assert cost(ScaleMethod("mse").limit(record.histogram, record.amax, kind)) <= 1.005 * best


def test_a_power_of_two_rounds_as_scale_one_does_and_loses_less_of_the_small_and_the_large() -> None:
    method, values = ScaleMethod("power-of-two"), np.random.RandomState(3).standard_normal(50_000)
    for size in (1e-4, 1.0, 300.0):
        x = (values * size).astype(np.float32).astype(np.float64)
        amax = float(np.abs(x).max())
        scale = scale_of(method.limit(histogram_of(x), amax, "fp8"), "fp8")
        assert math.log2(scale).is_integer() and amax <= 448 * scale < 2 * amax
        scaled, unscaled = fake_quantize(x, scale, "fp8"), fake_quantize(x, 1.0, "fp8")
        normal = (np.abs(x) >= 2.0**-6) & (np.abs(x) <= 448) & (np.abs(x) >= scale * 2.0**-6)
        assert np.array_equal(scaled[normal], unscaled[normal])
        assert np.square(scaled - x).sum() <= np.square(unscaled - x).sum()
    assert method.limit(histogram_of(np.array([3.0])), 3.0, "int8") == 3.0, "an integer's step grows with the limit"
    assert method.limit(histogram_of(np.array([448.0])), 448.0, "fp8") == 448.0


@given(
    amax=st.floats(2.0**-120, 2.0**60, width=32),
    shares=st.lists(st.floats(-1, 1), min_size=1, max_size=20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_no_value_comes_back_worse_from_the_engines_cache_than_with_scale_one(
    amax: float, shares: list[float], dtype: torch.dtype
) -> None:
    """Up to 448; above, numbers below a 64th of the scale lose up to a 1024th of it, and what 448 cuts is kept."""
    values = torch.tensor([amax, *(share * amax for share in shares)], dtype=torch.float32).to(dtype)
    largest = float(values.abs().max())
    scale = scale_of(ScaleMethod().limit(histogram_of(values.float().numpy()), largest, "fp8"), "fp8")
    chosen, unit = (error_in_the_cache(values, s) for s in (scale, 1.0))
    assert largest <= 448 * scale
    spared = values.double().abs() >= scale / 64 if scale > 1 else torch.ones(len(values), dtype=torch.bool)
    assert bool((chosen <= unit)[spared].all())
    assert bool((chosen <= scale / 1024)[~spared].all())


def error_in_the_cache(values: torch.Tensor, scale: float) -> torch.Tensor:
    row = torch.cat([values, values])[None]
    cache = Fp8(1, len(values), [Scale(scale, scale)], values.dtype)
    back = cache.decode(0, cache.encode(0, row)).flatten()[: len(values)]
    return (back.double() - values.double()).abs()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "power-of-two"])
def test_no_method_exceeds_amax_or_fails_on_zeros(name: str) -> None:
    values = np.random.RandomState(2).standard_normal(1000)
    amax = float(np.abs(values).max())
    for kind in LARGEST:
        assert 0 < ScaleMethod(name).limit(histogram_of(values), amax, kind) <= amax
        assert ScaleMethod(name).limit(histogram_of(np.zeros(10)), 0.0, kind) == 0.0


def test_entropy_keeps_a_uniform_tensor_whole() -> None:
    values = np.linspace(-1, 1, 100_001)
    assert ScaleMethod("entropy").limit(histogram_of(values), 1.0, "int8") > 0.9


def test_groups_share_a_scale() -> None:
    amax = np.array([7.0, 1.0, 14.0, 0.0, 0.0], np.float32)
    assert group_scales(amax, 2, "int4").tolist() == [1.0, 2.0, 1.0]
