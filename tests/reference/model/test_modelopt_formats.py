"""What nvidia-modelopt exports is computed as modelopt itself simulates it: its quantised layers are the witness.

`pytest -m slow tests/reference/model/test_modelopt_formats.py`; modelopt takes some seconds for each. Of fused layers
(qkv, fc and gate) its export makes the input scales one again, so those are held to the original weights instead. It
writes float16 for float32.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import load_oracle, prompt_of
from tiny import VOCAB_SIZE, tiny_checkpoint
from torch import Tensor
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.modelopt import quantized_model
from trtkit.conversion.modelopt_limits import ModeloptOptions
from trtkit.conversion.options import ConversionOptions
from trtkit.progress import silent
from trtkit.reference.model.config import read_config
from trtkit.reference.model.linear_weight import LinearWeight
from trtkit.reference.model.quantized_linear import make_layer
from trtkit.reference.model.rounding import Fp8PerToken
from trtkit.reference.model.shards import Shards

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("modelopt") is None, reason="pip install 'trtkit[quantize]'"),
]
HIDDEN, INNER = 256, 512
SIZES: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": INNER, "head_dim": 64, "num_hidden_layers": 2}
SAMPLES = tuple(tuple(prompt_of(64, VOCAB_SIZE, seed=seed)) for seed in range(4))
# Largest relative error of a quantised matrix: 4 bits in groups, 8 bits.
STEP = {"int4_awq": 0.15, "w4a8_awq": 0.16, "int8_smoothquant": 0.02, "nvfp4": 0.15}


def quantized_shards(quantization: Any, tp: int, folder: Path) -> tuple[Path, Shards]:
    source = tiny_checkpoint(folder / "source", "llama", **SIZES)
    options = ConversionOptions(dtype="float32", quantization=quantization, tensor_parallel=tp, calibration_ids=SAMPLES)
    (folder / "out").mkdir()
    convert_checkpoint(source, folder / "out", options)
    return source, Shards(folder / "out", read_config(folder / "out"))


def values_of(weight: LinearWeight) -> Tensor:
    """The matrix that the layer multiplies its unscaled inputs with."""
    matrix = weight.weight.float()
    if weight.scale is not None and weight.rounding is not None and not isinstance(weight.rounding, Fp8PerToken):
        matrix = matrix * weight.scale[:, None] / weight.rounding.scale
    return matrix if weight.pre_scale is None else matrix * weight.pre_scale.float()


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("quantization", ["int4_awq", "w4a8_awq", "int8_smoothquant"])
def test_a_layer_answers_as_modelopts_does(quantization: Any, tp: int, tmp_path: Path) -> None:
    source, shards = quantized_shards(quantization, tp, tmp_path)
    model = quantized_model(source, SAMPLES, ModeloptOptions(quantization, dtype="float32"), silent)
    generator = torch.Generator().manual_seed(0)
    for number, layer in enumerate(model.model.layers):
        for name, module in (("attention.dense", layer.self_attn.o_proj), ("mlp.proj", layer.mlp.down_proj)):
            shape = tuple(module.weight.shape)
            weights = shards.linear(f"transformer.layers.{number}.{name}", shape, 0, "columns")
            x = torch.randn(8, shape[1], generator=generator)
            ours = make_layer(weights, None, packed=False)(x.half()).float()
            theirs = module(x)
            # Roundings to float16 flip some 8-bit codes of inputs, which are worth 2^-4 of one input each.
            assert (ours - theirs).norm() < 1.5e-2 * theirs.norm(), (number, name)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("quantization", list(STEP))
def test_every_matrix_is_the_original_within_the_formats_step(quantization: Any, tp: int, tmp_path: Path) -> None:
    source, shards = quantized_shards(quantization, tp, tmp_path)
    layer = load_oracle(source).model.layers[0]
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([module.weight for module in (attention.q_proj, attention.k_proj, attention.v_proj)])
    for name, original, cut in (
        ("attention.qkv", qkv, "qkv"),
        ("attention.dense", attention.o_proj.weight, "columns"),
        ("mlp.fc", mlp.gate_proj.weight, "rows"),
        ("mlp.gate", mlp.up_proj.weight, "rows"),
        ("mlp.proj", mlp.down_proj.weight, "columns"),
    ):
        parts = shards.linear(f"transformer.layers.0.{name}", tuple(original.shape), 0, cut)  # type: ignore[arg-type]
        ours = torch.cat([values_of(part) for part in parts], 1)
        assert (ours - original).norm() < STEP[quantization] * original.norm(), name
