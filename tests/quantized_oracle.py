"""Quantised models as transformers computes them: dequantised weights, and inputs of linear layers rounded by hooks.

Written from the formats' definitions, independently of the engine: weights come from reassembly.py, inputs are rounded
to the nearest code by table look-up in float64.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from oracles import load_oracle, prompt_of
from reassembly import hf_tensors
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

Round = Callable[[Tensor], Tensor]


def e4m3_values() -> Tensor:
    """Every finite non-negative number of e4m3: 3 bits of mantissa, exponents -6 to 8, subnormals below."""
    numbers = {0.0} | {m / 8 * 2.0**-6 for m in range(8)}
    numbers |= {(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)}
    return torch.tensor(sorted(number for number in numbers if number <= 448.0), dtype=torch.float64)


E4M3 = e4m3_values()


def nearest(x: Tensor, values: Tensor) -> Tensor:
    """The value nearest to each |element|, with its sign; ties go to the even index, as mantissas do."""
    magnitude = x.double().abs().clamp(max=float(values[-1]))
    upper = torch.searchsorted(values, magnitude).clamp(max=len(values) - 1)
    lower = (upper - 1).clamp(min=0)
    below, above = magnitude - values[lower], values[upper] - magnitude
    takes_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    return torch.where(takes_upper, values[upper], values[lower]).copysign(x.double())


def fp8_static(scale: float) -> Round:
    return lambda x: (nearest(x / scale, E4M3) * scale).to(x.dtype)


def fp8_per_token(x: Tensor) -> Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    return (nearest(x / scale, E4M3) * scale).to(x.dtype)


def input_maxima(source: Path) -> dict[str, float]:
    """The largest input of every linear layer over one prompt, by the checkpoint's names; q, k, v alike."""
    model, largest = load_oracle(source), {}

    def watch(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def hook(_: Any, args: tuple[Tensor, ...]) -> None:
            largest[name] = max(largest.get(name, 0.0), float(args[0].abs().max()))

        return hook

    for name, module in linears(model):
        module.register_forward_pre_hook(watch(name))
    with torch.inference_mode():
        model(torch.tensor([prompt_of(100, tiny.VOCAB_SIZE, seed=5)]))
    return largest


def linears(model: nn.Module) -> list[tuple[str, Any]]:
    """Linear layers of the decoder, the head apart."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and "lm_head" not in name
    ]


def write_calibration(path: Path, maxima: dict[str, float]) -> Path:
    path.write_text(json.dumps({"schema": "trtkit.calibration/1", "inputs": maxima, "kv_cache": {}}))
    return path


def dequantised(source: Path, converted: Path, folder: Path) -> Any:
    """transformers with the weights that the converted checkpoint holds."""
    folder.mkdir()
    own = {name: np.asarray(values) for name, values in hf_tensors(converted).items() if name != "lm_head.weight"}
    tied = json.loads((source / "config.json").read_text()).get("tie_word_embeddings", True)
    head = {} if tied else {"lm_head.weight": hf_tensors(converted)["lm_head.weight"]}
    tiny.write_weights(folder, own | head, "float32")
    (folder / "config.json").write_text((source / "config.json").read_text())
    return load_oracle(folder)


def rounding_inputs(model: Any, rounding_of: Callable[[str], Round | None]) -> Any:
    """The model with the inputs of its linear layers rounded, layer by layer as `rounding_of` a name says."""
    for name, module in linears(model):
        rounding = rounding_of(name)
        if rounding is not None:
            module.register_forward_pre_hook(lambda _, args, r=rounding: (r(args[0]), *args[1:]))
    return model
