"""config.json of a checkpoint that modelopt quantised states the whole model, whatever modelopt found of it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from converted import read_config
from trtkit.conversion.convert import convert_to
from trtkit.conversion.modelopt_output import complete_config
from trtkit.conversion.options import ConversionOptions

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_facts_of_the_model_are_added_and_what_modelopt_decides_stays(tmp_path: Path) -> None:
    theirs = {"quantization": {"quant_algo": "NVFP4"}, "position_embedding_type": "rope_gpt_neox", "rank": 0}
    (tmp_path / "config.json").write_text(json.dumps(theirs))
    ours = {"quantization": {"quant_algo": None}, "position_embedding_type": "learned_absolute", "rotary_base": 5e5}
    complete_config(tmp_path, ours)
    assert read_config(tmp_path) == {
        "quantization": {"quant_algo": "NVFP4"},
        "position_embedding_type": "learned_absolute",
        "rotary_base": 5e5,
        "rank": 0,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("modelopt") is None, reason="pip install 'trtkit[quantize]'")
def test_rope_survives_modelopt(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256}
    source = tiny.tiny_checkpoint(
        tmp_path / "source", "llama", "bfloat16", **sizes, rope_theta=500000.0, rope_scaling=LLAMA3
    )
    options = ConversionOptions(
        dtype="bfloat16", quantization="int8_smoothquant", calibration_ids=(tuple(range(3, 60)),)
    )
    convert_to(source, tmp_path / "out", options)
    config = read_config(tmp_path / "out")
    assert (config["rotary_base"], config["rotary_scaling"]) == (500000.0, LLAMA3)
