"""GGUF files and pickles are read as what they hold, and nothing in them is executed."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from converted import read_tensors
from reassembly import hf_tensors, to_float
from tiny_gguf import write_gguf
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

FLOAT32 = ConversionOptions(dtype="float32")
PICKLES = ConversionOptions(dtype="float32", allow_pickle=True)


def original(folder: Path) -> dict[str, Any]:
    return {name: to_float(tensor) for name, tensor in read_tensors(folder / "model.safetensors").items()}


def as_pickle(folder: Path, shards: int = 1) -> dict[str, Any]:
    """Replace the safetensors file by pickles; returns the values."""
    values = original(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(values)
    weight_map = {}
    for number in range(shards):
        file = "pytorch_model.bin" if shards == 1 else f"pytorch_model-{number}.bin"
        part = {name: torch.from_numpy(values[name].copy()) for name in names[number::shards]}
        torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return values


@pytest.mark.parametrize("shards", [1, 3])
def test_an_allowed_pickle_gives_the_same_weights(shards: int, tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    values = as_pickle(source, shards)
    with pytest.raises(CheckpointError, match="--allow-pickle"):
        convert_to(source, tmp_path / "out", FLOAT32)
    convert_to(source, tmp_path / "out", PICKLES)
    converted = hf_tensors(tmp_path / "out")
    assert all(np.array_equal(converted[name], values[name]) for name in values)


class Malicious:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "executed")


def test_code_in_a_pickle_is_not_run_even_when_pickles_are_allowed(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    (source / "model.safetensors").unlink()
    trap = tmp_path / "trap"
    (source / "pytorch_model.bin").write_bytes(pickle.dumps({"model.norm.weight": Malicious(trap)}))
    with pytest.raises(CheckpointError) as caught:
        convert_to(source, tmp_path / "out", PICKLES)
    assert caught.value.code == "CKPT-PICKLE"
    assert not trap.exists() and not (tmp_path / "out").exists()


def test_a_gguf_file_gives_the_same_weights(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    values = original(source)
    gguf_file = tmp_path / "model.gguf"
    write_gguf(gguf_file, json.loads((source / "config.json").read_text()), values)
    assert not convert_to(gguf_file, tmp_path / "out", FLOAT32).skipped
    assert convert_to(gguf_file, tmp_path / "out", FLOAT32).skipped
    assert not (tmp_path / ".out.source").exists()
    converted = hf_tensors(tmp_path / "out")
    assert all(np.array_equal(converted[name], values[name]) for name in values)


def test_a_quantised_gguf_file_gives_what_its_codes_stand_for(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    values = original(source)
    gguf_file = tmp_path / "model.gguf"
    write_gguf(gguf_file, json.loads((source / "config.json").read_text()), values, quantized=True)
    convert_to(gguf_file, tmp_path / "out", FLOAT32)
    converted = hf_tensors(tmp_path / "out")
    for name, exact in values.items():
        error = np.abs(converted[name] - exact)
        if exact.ndim == 1:
            assert not error.any(), name
            continue
        # Codes of -127 .. 127 for 32 values each; the scale itself is float16.
        blocks = np.abs(exact.reshape(-1, 32)).max(axis=1, keepdims=True)
        half_step = np.broadcast_to(blocks / 127 * 0.6, (len(blocks), 32)).reshape(exact.shape)
        assert error.any() and (error <= half_step).all(), name


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(CheckpointError) as caught:
        convert_to(tmp_path / "model.gguf", tmp_path / "out", FLOAT32)
    assert caught.value.code == "CKPT-GGUF"
