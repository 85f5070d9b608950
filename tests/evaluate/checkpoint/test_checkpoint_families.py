"""Every family and quantisation can be followed layer by layer; what they change is explained, faults are not.

`pytest -m slow tests/evaluate/checkpoint/test_checkpoint_families.py` takes all families.
"""

from pathlib import Path
from typing import Any

import pytest
from deployed_tiny import Tensors, change_weights
from tiny import FAMILIES, tiny_checkpoint
from trtkit.builds import Build, open_build
from trtkit.config.load import parse_config
from trtkit.evaluate.checkpoint.run import compare_checkpoint
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.pipeline.run import BuildOptions, build

CHOICE = PromptChoice(limit=4)
TILES = {"hidden_size": 128, "intermediate_size": 256}
QUICK = ("gemma2", "qwen2_moe", "gpt2")
CELLS = [
    *(pytest.param(family, "none", marks=[] if family in QUICK else pytest.mark.slow) for family in FAMILIES),
    ("llama", "fp8"),
    ("gemma2", "int4_weight_only"),
    *(
        pytest.param("llama", quantization, marks=pytest.mark.slow)
        for quantization in ("fp8_rowwise", "int8_weight_only", "int4_weight_only")
    ),
]


def deployed(folder: Path, family: str, quantization: str) -> Build:
    """A build of one model for the reference backend in bfloat16; FP8 calibrates on the way."""
    sizes: dict[str, Any] = {} if quantization == "none" else TILES
    tiny_checkpoint(folder / "target", family, tokenizer=True, **sizes)
    document = {
        "name": "tiny",
        "backend": "reference",
        "target": {"checkpoint": str(folder / "target"), "dtype": "bfloat16", "quantization": quantization},
        "limits": {"max_batch_size": 4, "max_input_len": 160, "max_output_len": 32},
        "calibration": {"samples": 4, "max_len": 64},
    }
    options = BuildOptions(cache=folder / "cache", where="tiny.yaml", out=folder / "build")
    build(parse_config(document, where="tiny.yaml"), options)
    return open_build(folder / "build")


@pytest.mark.parametrize(("family", "quantization"), CELLS)
def test_a_clean_checkpoint_is_explained(family: str, quantization: str, tmp_path: Path) -> None:
    document = compare_checkpoint(deployed(tmp_path, family, quantization), CHOICE)
    assert (document["verdict"], document["quantization"]) == ("explained", quantization)
    # Three times the expected error is allowed; that the expectation is about right makes the check sharp.
    ratios = [point["error"] / point["tolerance"] for point in document["points"][1:]]
    assert max(ratios) < 0.6
    assert quantization == "fp8_rowwise" or max(ratios) > 0.1


def test_a_fault_in_quantised_weights_is_found_where_it_is(tmp_path: Path) -> None:
    def swap(tensors: Tensors) -> None:
        fc, gate = (f"transformer.layers.1.mlp.{name}.weight" for name in ("fc", "gate"))
        tensors[fc], tensors[gate] = tensors[gate], tensors[fc]

    broken = deployed(tmp_path, "llama", "int8_weight_only")
    change_weights(broken, "target", swap)
    assert compare_checkpoint(broken, CHOICE)["first_fault"]["name"] == "layer 1 mlp"
