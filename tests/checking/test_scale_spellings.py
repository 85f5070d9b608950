"""KV scales of Hugging Face checkpoints: the audit finds what the conversion reads, however it is spelt."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from trtkit.checking.folder_checks import check_hf_checkpoint
from trtkit.checking.subjects.hf_checkpoint import read_hf_checkpoint
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.source_scales import read_scales


def with_scales(folder: Path, names: tuple[str, ...]) -> Path:
    """Layer n has the scale (n + 1) / 10 under every name."""
    tiny_checkpoint(folder, dtype="bfloat16", tokenizer=True)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(3):
        for name in names:
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor([(layer + 1) / 10])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    quantization = {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
        ("kv_scale",),
    ],
)
def test_the_audit_finds_what_the_conversion_reads(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = with_scales(tmp_path / "hf", names)
    weights = open_weights(folder)
    taken = read_scales(weights, weights).kv
    checkpoint, _ = read_hf_checkpoint(folder, converts=True)
    assert {layer: max(scales) for layer, scales in checkpoint.kv_scales.items()} == taken
    assert sorted(taken) == [0, 1, 2]
    assert [finding.code for finding in check_hf_checkpoint(folder)] == ["SCALE-CALIBRATED"]


@pytest.mark.parametrize("names", [("q_scale", "prob_scale"), ("q_proj.output_scale", "o_proj.output_scale")])
def test_scales_of_queries_and_probabilities_are_none_of_the_cache(names: tuple[str, ...], tmp_path: Path) -> None:
    checkpoint, _ = read_hf_checkpoint(with_scales(tmp_path / "hf", names), converts=True)
    assert checkpoint.kv_scales == {}
