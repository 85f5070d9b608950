"""Which scales of a KV cache a checkpoint gets: one for all releases, and those of keys and values beside it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_checkpoint, write_json
from trtkit.conversion.convert import convert_to
from trtkit.conversion.kv_scales import KvScale
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.kv_cache.formats import Scale
from trtkit.reference.model.config import read_config
from trtkit.reference.model.load import WeightLoader


def test_the_larger_one_is_what_tensorrt_llm_reads() -> None:
    assert KvScale(0.5, 0.25).tensors() == {
        "kv_cache_scaling_factor": 0.5,
        "kv_cache_rcp_scaling_factor": 2.0,
        "k_cache_scaling_factor": 0.5,
        "v_cache_scaling_factor": 0.25,
    }


def test_one_scale_for_both_is_written_as_the_converter_of_tensorrt_llm_writes_it() -> None:
    assert KvScale(0.5).tensors() == {"kv_cache_scaling_factor": 0.5, "kv_cache_rcp_scaling_factor": 2.0}


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 448.0), ("int8", 127.0)])
def test_the_reference_engine_reads_both(kind: str, largest: float, tmp_path: Path) -> None:
    calibration = tmp_path / "calibration.json"
    limits = {str(layer): {"k": 20.0 + layer, "v": 5.0} for layer in range(3)}
    write_json(calibration, {"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": limits})
    options = ConversionOptions(dtype="float32", kv_cache_dtype=kind, calibration=calibration)  # type: ignore[arg-type]
    convert_to(tiny_checkpoint(tmp_path / "hf"), tmp_path / "out", options)
    weights = WeightLoader(tmp_path / "out", read_config(tmp_path / "out"), torch.device("cpu")).load(32)
    found = [Scale(*(pytest.approx(limit / largest) for limit in limits[str(layer)].values())) for layer in range(3)]
    assert list(weights.kv_scales) == found
    stored = load_file(tmp_path / "out" / "rank0.safetensors")
    assert stored["transformer.layers.2.attention.kv_cache_scaling_factor"] == pytest.approx(22.0 / largest)
