"""Linear layers: packed and plain weights agree, and a row's result does not depend on its neighbours."""

import pytest
import torch
from row_invariance import needs_measured_processor
from trtkit.reference.model.linear import MIN_ROWS, can_pack, make_linear

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def needs_packing(dtype: torch.dtype) -> None:
    if not can_pack(dtype, CPU):
        pytest.skip(f"oneDNN has no kernel for {dtype} on this processor")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_weights_compute_what_plain_ones_do(dtype: torch.dtype, has_bias: bool) -> None:
    needs_packing(dtype)
    weight, x = random(96, 64, dtype=dtype), random(5, 64, dtype=dtype)
    bias = random(96, dtype=dtype) if has_bias else None
    packed, plain = (make_linear(weight, bias, packed=packed)(x) for packed in (True, False))
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    # A sum of rounded products is off by at most eps of the sum of their magnitudes, up to the order of addition.
    tolerance = torch.finfo(dtype).eps * (x.double().abs() @ weight.double().abs().T + 1)
    assert ((packed - exact).abs() <= tolerance).all()
    assert ((plain - exact).abs() <= tolerance).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(960, 576), (576, 1536), (80, 48)])
def test_a_row_gets_the_same_bits_in_company_of_any_size(dtype: torch.dtype, num_outputs: int, num_inputs: int) -> None:
    needs_measured_processor(dtype)
    linear = make_linear(random(num_outputs, num_inputs, dtype=dtype), None, packed=True)
    x = random(96, num_inputs, dtype=dtype)
    pairs = torch.cat([linear(x[i : i + MIN_ROWS]) for i in range(0, 96, MIN_ROWS)])
    for num_rows in (3, 5, 8, 9, 16, 17, 33, 96):
        assert torch.equal(linear(x[:num_rows]), pairs[:num_rows]), num_rows


def test_float16_runs_with_plain_weights_where_the_processor_lacks_it() -> None:
    packed = can_pack(torch.float16, CPU)
    linear = make_linear(random(8, 4, dtype=torch.float16), None, packed=packed)
    assert linear(random(2, 4, dtype=torch.float16)).dtype == torch.float16
