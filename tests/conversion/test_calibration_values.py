"""Numbers of a calibration file that make no scale, and keys that name no layer: refused before any output."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import safetensors_bytes, tiny_checkpoint
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.calibration import read_calibration, refuse_foreign
from trtkit.conversion.convert import convert_to
from trtkit.conversion.fp8_encoder import fp8_scale
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.static_scale import static_scale
from trtkit.errors import CheckpointError, InputError

O_PROJ = "model.layers.1.self_attn.o_proj"


def calibration(folder: Path, source: Path, **changes: Any) -> Path:
    """A file of plain limits; changes maps a module, or layer_N, to another limit, or another {"k", "v"}."""
    modules = [name.removesuffix(".weight") for name in open_weights(source) if name.endswith("_proj.weight")]
    inputs = dict.fromkeys(modules, 3.0) | {name: v for name, v in changes.items() if name in modules}
    kv = {str(layer): {"k": 2.0, "v": 1.0} for layer in range(3)}
    kv |= {name.removeprefix("layer_"): v for name, v in changes.items() if name.startswith("layer_")}
    path = folder / "calibration.json"
    path.write_text(json.dumps({"schema": "trtkit.calibration/1", "inputs": inputs, "kv_cache": kv}))
    return path


def convert(folder: Path, changes: Mapping[str, Any], **options: Any) -> Path:
    source = tiny_checkpoint(folder / "hf")
    path = calibration(folder, source, **changes)
    asked = {"quantization": "fp8", "kv_cache_dtype": "fp8"} | options
    convert_to(source, folder / "out", ConversionOptions(dtype="float16", calibration=path, **asked))
    return folder / "out"


@pytest.mark.parametrize("limit", [1e-44, 1e-300, 1e-37, 1e300, 1e42])
@pytest.mark.parametrize(
    ("options", "named"),
    [({}, "kv_cache:1:k"), ({"quantization": "none", "kv_cache_dtype": "int8"}, "kv_cache:1:k"),
     ({"quantization": "none", "output_format": "hf"}, "kv_cache:1:k"), ({}, O_PROJ)],
    ids=["fp8", "int8", "hf", "input"],
)  # fmt: skip
def test_a_limit_that_makes_no_scale_is_named(
    limit: float, options: Mapping[str, Any], named: str, tmp_path: Path
) -> None:
    changes = {O_PROJ: limit} if named == O_PROJ else {"layer_1": {"k": limit, "v": 1.0}}
    with pytest.raises(InputError) as caught:
        convert(tmp_path, changes, **options)
    assert caught.value.code == "CONV-CALIBRATION" and str(caught.value.where).endswith("calibration.json")
    assert named in caught.value.cause and f"{limit:g}" in caught.value.cause
    assert not (tmp_path / "out").exists()


def test_a_small_value_limit_is_named_though_the_shared_scale_would_hide_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kv_cache:2:v is 1e-44"):
        convert(tmp_path, {"layer_2": {"k": 1.0, "v": 1e-44}})


@given(st.floats(min_value=0, allow_infinity=True, allow_nan=False, allow_subnormal=True))
def test_a_scale_and_its_reciprocal_are_finite_in_float32_or_there_is_none(limit: float) -> None:
    for largest in (448.0, 127.0, 1.0):
        scale = static_scale(limit, largest)
        if scale is not None:
            assert scale == np.float32(limit / largest)
            assert 0 < scale < math.inf and 0 < np.float32(1) / np.float32(scale) < math.inf
    assert static_scale(1.0, 448.0) == np.float32(1) / np.float32(448)


def test_a_weight_too_small_for_a_scale_becomes_zeros() -> None:
    assert [fp8_scale(largest) for largest in (0.0, 1e-44, 1e-38, math.inf, math.nan)] == [1.0] * 5
    assert fp8_scale(448.0) == 1.0 and fp8_scale(1.0) == np.float32(1 / 448)


@pytest.mark.parametrize("key", ["00", "+1", " 1", "1.0", "-0", "٢", "²", "1_0", "9" * 5000, "x", ""])
def test_a_layer_has_one_spelling(key: str, tmp_path: Path) -> None:
    path = calibration(tmp_path, tiny_checkpoint(tmp_path / "hf"), **{f"layer_{key}": {"k": 400.0, "v": 1.0}})
    with pytest.raises(InputError, match="CONV-CALIBRATION") as caught:
        read_calibration(path)
    assert "a layer's number" in caught.value.cause and len(caught.value.cause) < 120


@pytest.mark.parametrize("text", ["{", '{"checkpoint": "x"}', '{"checkpoint": {"digest": 5}}', "[1]", None])
def test_a_damaged_file_is_spoken_of_as_a_calibration_file(text: str | None, tmp_path: Path) -> None:
    source, path = tiny_checkpoint(tmp_path / "hf"), tmp_path / "limits.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        convert_to(source, tmp_path / "out", ConversionOptions(kv_cache_dtype="fp8", calibration=path))
    assert caught.value.code == "CONV-CALIBRATION"
    assert str(path) in str(caught.value.where) and "calibration file" in caught.value.fix
    with pytest.raises(InputError, match="CONV-CALIBRATION"):
        refuse_foreign(path, source)


@pytest.mark.parametrize("name", ["self_attn.k_proj.k_scale", "self_attn.o_proj.input_scale"])
def test_a_carried_scale_without_a_reciprocal_is_refused(name: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "hf")
    tensors = {}
    for stored in open_weights(source).values():
        data = stored.file.read_bytes()[stored.start : stored.stop]
        tensors[stored.name] = np.frombuffer(data, "<f4").reshape(stored.shape)
    scale = {f"model.layers.1.{name}": np.array([1e-44], "<f4")}
    (source / "model.safetensors").write_bytes(safetensors_bytes(tensors | scale, "float32"))
    with pytest.raises(CheckpointError, match=r"CKPT-SCALE.*float32 reciprocal"):
        convert_to(source, tmp_path / "out", ConversionOptions(dtype="float16", kv_cache_dtype="fp8"))
