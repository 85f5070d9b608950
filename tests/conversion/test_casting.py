"""Every cast agrees with PyTorch on every 16-bit value, and on float32 values around each rounding boundary."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trtkit.conversion.casting import E4M3_VALUES, cast, has_non_finite, largest_magnitude, to_e4m3, to_float32
from trtkit.conversion.fp8_encoder import fp8_quantizer

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALL = np.arange(1 << 16, dtype=np.uint16)


def as_torch(bits: NDArray[np.generic], dtype: str) -> torch.Tensor:
    """The same values as a tensor."""
    return torch.from_numpy(bits.view(np.uint8).copy()).view(TORCH[dtype])


def bits_of(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.contiguous().view(torch.uint8).numpy()


def float32_near_boundaries() -> NDArray[np.float32]:
    """Random values of every exponent, and the neighbours of every 16-bit value and of the middles between them."""
    grid = (ALL.astype(np.uint32) << 16)[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    halves = ALL.view(np.float16).astype(np.float32)
    finite = halves[np.isfinite(halves)]
    around = np.concatenate([np.nextafter(finite, np.float32(np.inf)), np.nextafter(finite, np.float32(-np.inf))])
    random = np.random.default_rng(0).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    return np.concatenate([grid.reshape(-1).view(np.float32), around, random.view(np.float32)])


def source_bits(dtype: str) -> NDArray[np.generic]:
    return float32_near_boundaries() if dtype == "float32" else ALL.view(np.float16) if dtype == "float16" else ALL


@pytest.mark.parametrize("target", list(TORCH))
@pytest.mark.parametrize("source", list(TORCH))
@pytest.mark.parametrize("add_one", [False, True])
def test_casts_agree_with_pytorch(source: str, target: str, add_one: bool) -> None:
    bits = source_bits(source)
    convert = cast(source, target, add_one)
    values = as_torch(bits, source)
    expected = (values.float() + 1.0).to(TORCH[target]) if add_one else values.to(TORCH[target])
    ours = as_torch(bits if convert is None else convert(bits), target)
    assert torch.equal(torch.isnan(ours), torch.isnan(expected))
    kept = ~torch.isnan(expected)
    assert np.array_equal(bits_of(ours[kept]), bits_of(expected[kept]))


@pytest.mark.parametrize("dtype", list(TORCH))
@pytest.mark.parametrize("scale", [1.0, 0.0123, 3.7e-5, 448.0])
def test_fp8_agrees_with_pytorchs_saturating_quantisation(dtype: str, scale: float) -> None:
    bits = source_bits(dtype)
    values = as_torch(bits, dtype).float()
    expected = (values / np.float32(scale)).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    ours = fp8_quantizer(dtype, scale)(bits)
    finite = ~torch.isnan(values).numpy()
    assert np.array_equal(ours[finite], expected[finite])
    assert ((ours[~finite] & 127) == 127).all(), "NaN stays NaN"


def test_the_256_codes_of_fp8_are_pytorchs() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3_VALUES, codes, equal_nan=True)
    assert np.array_equal(to_e4m3(codes)[:127], np.arange(127, dtype=np.uint8))


@pytest.mark.parametrize("dtype", list(TORCH))
def test_the_largest_magnitude_and_nan_are_found_in_the_bits(dtype: str) -> None:
    random = np.random.default_rng(1)
    for size in (1, 3, 1000):
        values = torch.from_numpy(random.standard_normal(size).astype(np.float32)).to(TORCH[dtype])
        bits = bits_of(values).view({"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[dtype])
        assert largest_magnitude(bits, dtype) == values.abs().max().item()
        assert not has_non_finite(bits, dtype)
        for bad in (float("nan"), float("inf"), float("-inf")):
            values[size // 2] = bad
            assert has_non_finite(bits_of(values).view(bits.dtype), dtype)


def test_a_tensor_of_negative_numbers_has_a_magnitude() -> None:
    bits = bits_of(torch.tensor([-3.0, -0.5]).to(torch.bfloat16)).view(np.uint16)
    assert largest_magnitude(bits, "bfloat16") == 3.0
    assert to_float32(bits, "bfloat16").tolist() == [-3.0, -0.5]
