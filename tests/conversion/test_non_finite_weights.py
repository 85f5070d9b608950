"""NaN and Inf in a weight that is quantised: one finding that names the tensor, and no warning of numpy's beside it."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("quantization", ["int8_weight_only", "int4_weight_only", "fp8_rowwise"])
def test_the_finding_is_all_that_is_said(quantization: Any, value: float, tmp_path: Path) -> None:
    """numpy's warnings are errors in these tests."""
    source = tiny_checkpoint(tmp_path / "hf", hidden_size=128, intermediate_size=256)
    weights = load_file(source / "model.safetensors")
    weights[NAME][3, 5] = value
    save_file(weights, source / "model.safetensors")
    report = convert_to(source, tmp_path / "out", ConversionOptions(dtype="float32", quantization=quantization))
    assert [(finding.code, finding.where.endswith(NAME)) for finding in report.findings] == [("CKPT-NAN", True)]
