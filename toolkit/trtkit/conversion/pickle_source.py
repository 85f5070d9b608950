"""Pickles rewritten as safetensors, read with torch's weights_only loader, which runs no code. Knows no layout."""

import json
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.artifacts import write_text
from trtkit.checkpoints.quoted import quoted
from trtkit.checkpoints.stored_tensor import FLOAT_DTYPES
from trtkit.checkpoints.weights import INDEX_NAME
from trtkit.errors import CheckpointError, MissingToolError

if TYPE_CHECKING:
    from torch import Tensor

_OTHER_CHECKPOINT = "use another checkpoint, or save this one's state dict of plain tensors alone"
_WRAPPER = "state_dict"


def rewrite_pickles(source: Path, files: list[Path], folder: Path) -> None:
    """One safetensors file per pickle, tensors that share storage written out on their own, and an index.

    Raises CheckpointError CKPT-PICKLE naming what is no plain tensor under a name, CKPT-DUPLICATE for a name in two
    files, MissingToolError when torch is not installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise missing_package(error) from None
    weight_map: dict[str, str] = {}
    for number, file in enumerate(files, start=1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        tensors = {key: tensor.contiguous().clone() for key, tensor in _tensors(file)}
        twice = next(iter(weight_map.keys() & tensors), None)
        if twice is not None:
            fix = "remove the file that does not belong to this checkpoint"
            raise CheckpointError(f"holds {quoted(twice)} a second time", fix, code="CKPT-DUPLICATE", where=str(file))
        weight_map |= dict.fromkeys(tensors, name)
        save_file(tensors, folder / name)
    write_text(folder / INDEX_NAME, json.dumps({"weight_map": weight_map}))
    if (source / "config.json").is_file():
        shutil.copyfile(source / "config.json", folder / "config.json")


def missing_package(error: ImportError) -> MissingToolError:
    """The error for a package that only these formats need."""
    return MissingToolError(
        f"reading this format needs {error.name}", "pip install 'trtkit[reference]'", code="CONV-PACKAGE"
    )


def _tensors(file: Path) -> Iterator[tuple[str, "Tensor"]]:
    """Name and tensor of every entry; entries that are no tensors (counters, versions) have no place in safetensors."""
    import torch

    state = _state_dict(_load(file), file)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise _error(file, "holds no tensors by name")
    for name, value in tensors.items():
        fault = _fault(name, value)
        if fault is not None:
            raise _error(file, f"{quoted(name)} is {fault}")
        yield name, value


def _load(file: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            # About torch's own classes and other pickle protocols; what cannot be read is an error all the same.
            warnings.simplefilter("ignore", UserWarning)
            # Files older than torch 1.6 are no zip archives, and cannot be mapped.
            return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"is no pickle of plain tensors ({type(error).__name__})",
            "do not use this file: it is damaged, or it would run code when loaded",
            code="CKPT-PICKLE",
            where=str(file),
        ) from error


def _state_dict(loaded: Any, file: Path) -> dict[Any, Any]:
    """The object itself, or what it holds as "state_dict" when there is no tensor beside it."""
    import torch

    if not isinstance(loaded, dict):
        raise _error(file, f"holds a {type(loaded).__name__} and no state dict")
    inner = loaded.get(_WRAPPER)
    if not isinstance(inner, dict):
        return loaded
    beside = next((name for name, value in loaded.items() if isinstance(value, torch.Tensor)), None)
    if beside is not None:
        raise _error(file, f"holds {quoted(beside)} and a {_WRAPPER} beside it, so it is not known which is meant")
    return inner


def _fault(name: Any, value: "Tensor") -> str | None:
    """Why safetensors cannot hold it under this name, or None."""
    import torch

    if not isinstance(name, str):
        return "a tensor under a name that is no text"
    if value.is_quantized:
        return "a tensor that torch quantised"
    if value.layout is not torch.strided:
        return "a sparse tensor"
    if value.is_meta:
        return "a tensor without values (on the meta device)"
    if value.is_floating_point() and str(value.dtype).removeprefix("torch.") not in (*FLOAT_DTYPES, *_ALSO_FLOAT):
        return f"a tensor of {value.dtype}"
    return f"a tensor of {value.dtype}" if value.is_complex() else None


_ALSO_FLOAT = ("float64", "float8_e4m3fn", "float8_e5m2")


def _error(file: Path, what: str) -> CheckpointError:
    return CheckpointError(what, _OTHER_CHECKPOINT, code="CKPT-PICKLE", where=str(file))
