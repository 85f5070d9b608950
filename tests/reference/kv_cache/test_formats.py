"""Stored formats: how far what comes back may be from what went in, by the format's own steps, and its real size."""

import pytest
import torch
from torch import Tensor
from trtkit.reference.kv_cache.block_tables import RowClear, RowCopy
from trtkit.reference.kv_cache.formats import E4M3_MAX, Format, Fp8, Int4, Int8, Scale
from trtkit.reference.kv_cache.storage import KvStorage

HEADS, DIM = 2, 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_rows(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Keys three times as large as values."""
    rows = torch.randn(count, 2, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    rows[:, 0] *= 3
    return rows.flatten(1).to(dtype)


def through(codec: Format, rows: Tensor) -> Tensor:
    """[N, 2, H, D] float32"""
    return codec.decode(0, codec.encode(0, rows)).float()


def split(rows: Tensor) -> Tensor:
    return rows.view(-1, 2, HEADS, DIM).float()


def measured_scale(rows: Tensor, largest: float) -> Scale:
    keys, values = split(rows).abs().amax((0, 2, 3)).tolist()
    return Scale(keys / largest, values / largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_keeps_three_mantissa_bits(dtype: torch.dtype) -> None:
    rows = random_rows(50, dtype)
    scale = measured_scale(rows, E4M3_MAX)
    got, given = through(Fp8(HEADS, DIM, [scale], dtype), rows), split(rows)
    # Half a step of a 3-bit mantissa, or of the subnormals below 2^-6, and the rounding to the dtype.
    step = torch.tensor([scale.key, scale.value])[:, None, None] * 2.0**-9
    bound = torch.maximum(given.abs() * 2.0**-4, step / 2) + given.abs() * torch.finfo(dtype).eps
    assert ((got - given).abs() <= bound).all()


def test_fp8_reads_back_every_code_as_pytorch_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes != 127) & (codes != 255)]  # the NaNs
    rows = torch.zeros(1, 2 * HEADS * DIM, dtype=torch.uint8)
    rows[0, : len(codes)] = codes
    got = Fp8(HEADS, DIM, [Scale(1, 1)], torch.float32).decode(0, [rows]).flatten()[: len(codes)]
    assert torch.equal(got, codes.view(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exponent", [-30, -1, 7, 8, 40, 100])
def test_fp8_takes_scales_of_any_size(exponent: int, dtype: torch.dtype) -> None:
    factor = 2.0**exponent
    rows = random_rows(5).to(dtype)
    got = through(Fp8(HEADS, DIM, [Scale(factor, factor)], dtype), rows * factor)
    assert torch.equal(got, through(Fp8(HEADS, DIM, [Scale(1, 1)], dtype), rows) * factor)


def test_fp8_saturates() -> None:
    rows = torch.full((1, 2 * HEADS * DIM), 1e6)
    assert through(Fp8(HEADS, DIM, [Scale(1, 2)], torch.float32), rows)[0, :, 0, 0].tolist() == [448, 896]


@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_off_by_half_a_step(dtype: torch.dtype) -> None:
    rows = random_rows(50, dtype)
    scale = measured_scale(rows, 127)
    got, given = through(Int8(HEADS, DIM, [scale], dtype), rows), split(rows)
    step = torch.tensor([scale.key, scale.value])[:, None, None]
    assert ((got - given).abs() <= step * 0.501 + given.abs() * torch.finfo(dtype).eps).all()


def test_int8_saturates_on_both_sides() -> None:
    rows = torch.full((2, 2 * HEADS * DIM), 1e6) * torch.tensor([[1.0], [-1.0]])
    got = through(Int8(HEADS, DIM, [Scale(1, 1)], torch.float32), rows)
    assert got[:, 0, 0, 0].tolist() == [127, -127]


@pytest.mark.parametrize("dtype", DTYPES)
def test_int4_is_off_by_half_a_fifteenth_of_its_groups_range(dtype: torch.dtype) -> None:
    rows = random_rows(50, dtype) + 5  # away from zero: the zero point has to carry it
    got, given = through(Int4(HEADS, DIM, dtype), rows), split(rows)
    groups = given.unflatten(3, (-1, 32))
    span = groups.amax(4) - groups.amin(4)
    bound = (span / 15 * 0.51 + 0.01)[..., None]  # step and zero are float16
    assert ((got - given).unflatten(3, (-1, 32)).abs() <= bound + groups.abs() * torch.finfo(dtype).eps).all()


def test_int4_keeps_a_group_of_equal_numbers() -> None:
    rows = torch.full((1, 2 * HEADS * DIM), 0.75)
    assert torch.equal(through(Int4(HEADS, DIM, torch.float32), rows), split(rows))


def test_int4_needs_whole_groups() -> None:
    with pytest.raises(ValueError, match="head_dim 40"):
        Int4(HEADS, 40, torch.float32)
    assert Int4(1, 8, torch.float32).planes[0].width == 8


@pytest.mark.parametrize(
    ("codec", "bytes_per_token"),
    [
        (None, 2 * HEADS * DIM * 4),
        (Fp8(HEADS, DIM, [Scale(1, 1)], torch.float32), 2 * HEADS * DIM),
        (Int8(HEADS, DIM, [Scale(1, 1)], torch.float32), 2 * HEADS * DIM),
        (Int4(HEADS, DIM, torch.float32), 2 * HEADS * (DIM // 2 + DIM // 32 * 4)),
    ],
    ids=["own", "fp8", "int8", "int4"],
)
def test_a_token_takes_its_real_size(codec: Format | None, bytes_per_token: int) -> None:
    storage = KvStorage(num_layers=3, num_rows=10, kv_shape=(HEADS, DIM), like=torch.zeros(1), codec=codec)
    assert storage.num_bytes == 3 * 10 * bytes_per_token


@pytest.mark.parametrize(
    "codec", [None, Fp8(HEADS, DIM, [Scale(1, 1)], torch.float32), Int4(HEADS, DIM, torch.float32)]
)
def test_rows_are_read_alike_in_place_and_by_index_and_after_a_copy(codec: Format | None) -> None:
    storage = KvStorage(num_layers=1, num_rows=12, kv_shape=(HEADS, DIM), like=torch.zeros(1), codec=codec)
    storage.write(0, torch.arange(2, 6), random_rows(4))
    storage.apply([RowCopy(2, 8, 4)])
    keys, values = storage.read(0, range(2, 6))
    for rows in (torch.arange(2, 6), range(8, 12)):
        again = storage.read(0, rows)
        assert torch.equal(again[0], keys) and torch.equal(again[1], values)
    storage.apply([RowClear(8, 12)])
    assert not storage.read(0, range(8, 12))[0].any()
