"""Storage formats of linear layers, unpacked and rounded one number at a time by independent code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lone_sequence import lone_sequence
from oracles import prompt_of
from quantized_oracle import E4M3, nearest
from tiny_trtllm import edit_checkpoint, edit_tensors, tiny_model, write_checkpoint
from torch import Tensor
from trtkit.errors import CheckpointError
from trtkit.reference.model.config import QuantConfig
from trtkit.reference.model.linear_weight import LinearWeight, joined_by_columns, joined_by_rows
from trtkit.reference.model.quantized_linear import make_layer
from trtkit.reference.model.rounding import Fp4PerBlock, Fp8PerTensor, Fp8PerToken, Int8PerTensor, Rounding
from trtkit.reference.model.stored_linear import Stored, decode

OUTPUTS, INPUTS, GROUP = 6, 32, 16
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def decoded(algorithm: str, **tensors: Tensor) -> LinearWeight:
    return decode(Stored(tensors, QuantConfig(algorithm, None, GROUP, None, None), torch.float32))


def packed_pairs(low: Tensor, high: Tensor) -> Tensor:
    return ((low & 15) | ((high & 15) << 4)).to(torch.uint8)


def test_int4_awq_unpacks_pairs_of_outputs_and_scales_groups_of_inputs() -> None:
    codes, scale = integers(-8, 8, OUTPUTS, INPUTS), random(OUTPUTS, INPUTS // GROUP)
    layer = decoded(
        "W4A16_AWQ",
        weight=packed_pairs(codes[0::2], codes[1::2]).view(torch.int8),
        weights_scaling_factor=scale,
        prequant_scaling_factor=torch.arange(INPUTS).float(),
    )
    expected = torch.tensor([[codes[o, i] * scale[o, i // GROUP] for i in range(INPUTS)] for o in range(OUTPUTS)])
    assert torch.equal(layer.weight, expected)
    assert layer.rounding is None
    x = random(3, INPUTS)
    answer = make_layer([layer], None, packed=False)(x)
    torch.testing.assert_close(answer, (x * torch.arange(INPUTS)) @ expected.T)


def test_w4a8_awq_rounds_scaled_integers_to_e4m3() -> None:
    codes, scale = integers(-8, 8, OUTPUTS, INPUTS), random(OUTPUTS, INPUTS // GROUP).abs() + 0.1
    layer = decoded(
        "W4A8_AWQ",
        weight=packed_pairs(codes[0::2], codes[1::2]).view(torch.int8),
        weights_scaling_factor=scale,
        weights_scaling_factor_2=torch.tensor([0.05]),
        activation_scaling_factor=torch.tensor([0.01]),
    )
    expected = nearest(codes * scale.repeat_interleave(GROUP, 1) / 0.05, E4M3)
    assert torch.equal(layer.weight.double(), expected)
    assert layer.rounding == Fp8PerTensor(float(torch.tensor(0.01)))
    assert layer.scale is not None
    torch.testing.assert_close(layer.scale, torch.full((OUTPUTS,), 0.05 * 0.01))


def test_nvfp4_unpacks_pairs_of_inputs_and_scales_blocks_of_16() -> None:
    nibbles = integers(0, 16, OUTPUTS, INPUTS)
    block = torch.tensor([0.25, 1.5, 6.0, 448.0] * 3).view(OUTPUTS, INPUTS // 16).to(torch.float8_e4m3fn)
    layer = decoded(
        "NVFP4",
        weight=packed_pairs(nibbles[:, 0::2], nibbles[:, 1::2]),
        weights_scaling_factor=block,
        weights_scaling_factor_2=torch.tensor(0.5),
        activation_scaling_factor=torch.tensor(0.25),
    )
    values = [[(-1 if n >= 8 else 1) * float(E2M1[n % 8]) for n in row] for row in nibbles.tolist()]
    expected = torch.tensor(values) * block.float().repeat_interleave(16, 1)
    assert torch.equal(layer.weight, expected)
    assert layer.scale is not None and float(layer.scale[0]) == 0.125


def test_fp8_weights_may_be_stored_as_the_bits_of_int8() -> None:
    weight = random(OUTPUTS, INPUTS).to(torch.float8_e4m3fn)
    scales = {"weights_scaling_factor": torch.tensor([0.5]), "activation_scaling_factor": torch.tensor([0.25])}
    as_fp8, as_int8 = (decoded("FP8", weight=w, **scales) for w in (weight, weight.view(torch.int8)))
    assert torch.equal(as_fp8.weight, as_int8.weight)
    assert torch.equal(as_fp8.weight, weight.float())


def test_a_layer_without_scales_is_what_it_says() -> None:
    weight = random(OUTPUTS, INPUTS)
    assert decoded("FP8", weight=weight) == LinearWeight(weight)


def fp4_by_block(x: Tensor, scale: float) -> Tensor:
    blocks = x.double().view(len(x), -1, 16)
    block = nearest(blocks.abs().amax(2, keepdim=True) / (6 * scale), E4M3)
    return (nearest(blocks / torch.where(block > 0, block * scale, 1.0), E2M1) * block).view(x.shape)


ROUNDINGS: dict[str, tuple[Rounding, Callable[[Tensor], Tensor]]] = {
    "FP8": (Fp8PerTensor(0.01), lambda x: nearest(x / 0.01, E4M3)),
    "FP8 that saturates": (Fp8PerTensor(0.001), lambda x: nearest(x / 0.001, E4M3)),
    "FP8 by token": (Fp8PerToken(None), lambda x: nearest(x / (x.abs().amax(1, keepdim=True) / 448), E4M3)),
    "FP8 by token, clamped": (
        Fp8PerToken((-1.0, 1.5)),
        lambda x: nearest(x.clamp(-1, 1.5) / (x.clamp(-1, 1.5).abs().amax(1, keepdim=True) / 448), E4M3),
    ),
    "INT8": (Int8PerTensor(0.02), lambda x: torch.round(x.double() / 0.02).clamp(-128, 127)),
    "FP4": (Fp4PerBlock(0.01), lambda x: fp4_by_block(x, 0.01)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ROUNDINGS)
def test_inputs_become_the_nearest_codes(kind: str, dtype: torch.dtype) -> None:
    rounding, expected = ROUNDINGS[kind]
    x = random(200, INPUTS, seed=3).to(dtype)
    codes = rounding(x).codes
    assert not rounding(torch.zeros_like(x)).codes.any()
    assert codes.dtype == dtype
    # The look-up divides in float64: a quotient within float32's rounding of a tie may fall on the other side.
    differs = codes.double() != expected(x.float())
    assert float(differs.double().mean()) < 3e-3


def test_the_ties_of_e2m1_go_to_the_even_mantissa() -> None:
    block_scale_one = Fp4PerBlock(1.0)
    ties = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 2])
    assert block_scale_one(ties).codes[0, :8].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]


def test_ranks_that_round_their_part_of_the_input_differently_stay_apart_and_add_up() -> None:
    parts = [
        LinearWeight(random(OUTPUTS, 8, seed=i), torch.ones(OUTPUTS), None, Int8PerTensor(0.1 + i)) for i in (0, 1)
    ]
    joined = joined_by_columns(parts)
    assert joined == parts
    x, bias = random(4, 16), random(OUTPUTS)
    halves = [parts[i].rounding(x[:, 8 * i : 8 * i + 8]).codes @ parts[i].weight.T for i in (0, 1)]  # type: ignore[misc]
    torch.testing.assert_close(make_layer(joined, bias, packed=False)(x), halves[0] + halves[1] + bias)


def test_outputs_of_ranks_that_round_the_same_input_differently_make_no_one_layer() -> None:
    parts = [LinearWeight(random(OUTPUTS, 8), torch.ones(OUTPUTS), None, Int8PerTensor(0.1 + i)) for i in (0, 1)]
    assert joined_by_rows(parts, torch.cat) is None


@pytest.mark.parametrize(
    ("algorithm", "tensors", "code", "words"),
    [
        ("FP8", {"weights_scaling_factor": torch.ones(1)}, "REF-TENSOR", "mlp.proj.activation_scaling_factor"),
        ("W8A16", {"per_channel_scale": torch.ones(48)}, "REF-UNSUPPORTED", "conversion.json"),
        ("NVFP4", {"weights_scaling_factor": torch.ones(3, 5)}, "REF-TENSOR", "weights_scaling_factor_2"),
    ],
)
def test_what_a_format_needs_is_named(
    algorithm: str, tensors: dict[str, Tensor], code: str, words: str, tmp_path: Path
) -> None:
    folder = edit_checkpoint(write_checkpoint(tiny_model(), tmp_path), quantization={"quant_algo": algorithm})
    changes: dict[str, Any] = {f"transformer__layers__0__mlp__proj__{name}": value for name, value in tensors.items()}
    edit_tensors(folder, **changes)
    with pytest.raises(CheckpointError, match=words) as caught:
        lone_sequence(folder)
    assert caught.value.code == code


def test_excluded_modules_stay_as_they_are(tmp_path: Path) -> None:
    model, token_ids = tiny_model(), prompt_of(20, 97)
    plain = lone_sequence(write_checkpoint(model, tmp_path / "plain")).feed(token_ids)
    named = edit_checkpoint(write_checkpoint(model, tmp_path / "named"), quantization={"quant_algo": "FP8"})
    assert torch.equal(lone_sequence(named).feed(token_ids), plain)
