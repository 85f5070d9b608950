"""GGUF files and pickles are read as what they hold, and nothing in them is executed."""

import json
import pickle
import warnings
from collections.abc import Callable
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


def pickled(folder: Path, wrap: Callable[[dict[str, Any]], Any], **how: Any) -> Path:
    """A tiny checkpoint whose pickle holds what `wrap` makes of its state dict."""
    source = tiny.tiny_checkpoint(folder / "source", num_hidden_layers=1)
    values = {name: torch.from_numpy(value.copy()) for name, value in original(source).items()}
    (source / "model.safetensors").unlink()
    torch.save(wrap(values), source / "pytorch_model.bin", **how)
    return source


def quantised(value: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop these tensors; files with them stay.
        return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("wrap", "how"),
    [
        (lambda state: state, {"_use_new_zipfile_serialization": False}),
        (lambda state: {"state_dict": state, "epoch": 3}, {}),
        (lambda state: {name: torch.nn.Parameter(value) for name, value in state.items()}, {}),
        (lambda state: {**state, "version": 3}, {}),
    ],
    ids=["the format before torch 1.6", "a nested state dict", "parameters", "a number beside"],
)
def test_a_pickle_is_read_in_every_usual_form(
    wrap: Callable[[dict[str, Any]], Any], how: dict[str, Any], tmp_path: Path
) -> None:
    plain = tiny.tiny_checkpoint(tmp_path / "plain", num_hidden_layers=1)
    convert_to(pickled(tmp_path, wrap, **how), tmp_path / "out", PICKLES)
    converted, values = hf_tensors(tmp_path / "out"), original(plain)
    assert all(np.array_equal(converted[name], values[name]) for name in values)


UNREADABLE_PICKLES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a sparse tensor": ("'x' is a sparse", lambda state: {**state, "x": torch.eye(4).to_sparse()}),
    "a quantised tensor": (
        "'x' is a tensor that torch quantised|KeyError",
        lambda s: {**s, "x": quantised(torch.ones(4))},
    ),
    "a meta tensor": ("'x' is a tensor without values", lambda state: {**state, "x": torch.empty(4, device="meta")}),
    "a complex tensor": (
        "'x' is a tensor of torch.complex64",
        lambda s: {**s, "x": torch.ones(2, dtype=torch.complex64)},
    ),
    "a name that is a number": ("5 is a tensor under a name", lambda state: {**state, 5: torch.ones(2)}),
    "a list": ("a list and no state dict", lambda state: list(state.values())),
    "no tensors": ("no tensors by name", lambda state: {"model": state}),
    "two state dicts": ("it is not known which", lambda state: {**state, "state_dict": state}),
    "a tensor of no use": ("belong to nothing", lambda state: {**state, "x": torch.ones(2)}),
}


@pytest.mark.parametrize(("fault", "wrap"), UNREADABLE_PICKLES.values(), ids=UNREADABLE_PICKLES)
def test_a_pickle_that_cannot_be_used_is_refused_and_leaves_nothing_behind(
    fault: str, wrap: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    source = pickled(tmp_path, wrap)
    with pytest.raises(CheckpointError, match=fault):
        convert_to(source, tmp_path / "out", PICKLES)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_tensor_in_two_pickles_is_named_with_the_pickle_it_is_in(tmp_path: Path) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    as_pickle(source, shards=2)
    second = torch.load(source / "pytorch_model-1.bin", weights_only=True)
    torch.save({**second, "model.norm.weight": torch.ones(64)}, source / "pytorch_model-0.bin")
    torch.save({**second, "model.norm.weight": torch.ones(64)}, source / "pytorch_model-1.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model-1\.bin: holds") as caught:
        convert_to(source, tmp_path / "out", PICKLES)
    assert caught.value.code == "CKPT-DUPLICATE"
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


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


@pytest.mark.parametrize(
    ("change", "lost", "fault"),
    [
        ({"intermediate_size": 128}, (), "another shape"),
        ({}, ("model.layers.1.mlp.up_proj.weight",), "lacks 'model.layers.1.mlp.up_proj.weight'"),
        ({"num_hidden_layers": 2}, (), "tensors of 3 layers, but its header announces 2"),
        ({"num_hidden_layers": 4}, (), "lacks"),
    ],
    ids=["another size", "a tensor lost", "fewer layers", "more layers"],
)
def test_a_gguf_file_that_does_not_fill_its_model_is_refused(
    change: dict[str, Any], lost: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    source = tiny.tiny_checkpoint(tmp_path / "source")
    values = {name: value for name, value in original(source).items() if name not in lost}
    config = json.loads((source / "config.json").read_text())
    # A header that lies about a size: the tensors are written with the true one.
    write_gguf(tmp_path / "model.gguf", config | change, values)
    with pytest.raises(CheckpointError, match=fault) as caught:
        convert_to(tmp_path / "model.gguf", tmp_path / "out", FLOAT32)
    assert caught.value.code == "CKPT-GGUF"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "source"], "nothing is left behind"
