"""Sources that are no safetensors: GGUF files and pickles, rewritten as safetensors once. Converts no layout.

Both need torch, GGUF needs transformers and gguf too. Pickles are read with torch's weights_only loader, which runs no
code from them, and only when the caller allows it.
"""

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtkit.artifacts import is_complete, key_of, stage_output, write_text
from trtkit.checkpoints.weights import INDEX_NAME
from trtkit.errors import CheckpointError, MissingToolError

_PICKLE_INDEX = "pytorch_model.bin.index.json"
_PICKLE_SINGLE = "pytorch_model.bin"


def readable_source(source: Path, scratch: Path, *, allow_pickle: bool = False) -> Path:
    """A folder with safetensors: `source` itself, or `scratch` with what a GGUF file or an allowed pickle holds.

    Reading these formats needs memory for the whole model. Raises CheckpointError CKPT-GGUF or CKPT-PICKLE when the
    file cannot be read, MissingToolError when torch, transformers or gguf is not installed.
    """
    files = foreign_files(source, allow_pickle=allow_pickle)
    if not files:
        return source
    key = key_of({str(file): [file.stat().st_size, file.stat().st_mtime_ns] for file in files})
    if not is_complete(scratch, key):
        with stage_output(scratch, stage="read", key=key) as folder:
            if files[0].suffix == ".gguf":
                _rewrite_gguf(files[0], folder)
            else:
                _rewrite_pickles(source, files, folder)
    return scratch


def foreign_files(source: Path, *, allow_pickle: bool) -> list[Path]:
    """The GGUF file or the pickles that have to be rewritten first; none for a folder with safetensors."""
    gguf = _gguf_file(source)
    if gguf is not None:
        return [gguf]
    return _pickle_files(source) if allow_pickle else []


def _gguf_file(source: Path) -> Path | None:
    """The GGUF file meant: `source` itself, or the only one in a folder without safetensors."""
    if source.suffix == ".gguf" and source.is_file():
        return source
    found = sorted(source.glob("*.gguf")) if source.is_dir() and not list(source.glob("*.safetensors")) else []
    if len(found) > 1:
        raise CheckpointError(f"holds {len(found)} GGUF files", "name one of them", code="CKPT-GGUF", where=str(source))
    return found[0] if found else None


def _pickle_files(source: Path) -> list[Path]:
    """The pickles of a folder without safetensors, those of the index where there is one."""
    if not source.is_dir() or list(source.glob("*.safetensors")):
        return []
    index = source / _PICKLE_INDEX
    if not index.is_file():
        return [source / _PICKLE_SINGLE] if (source / _PICKLE_SINGLE).is_file() else []
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [source / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            "is no index of pickles", "download it again", code="CKPT-INDEX", where=str(index)
        ) from None
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise CheckpointError(
            f"names {missing.name}, which is not there", "download it again", code="CKPT-MISSING", where=str(index)
        )
    return files


def _rewrite_gguf(file: Path, folder: Path) -> None:
    """Let transformers dequantise the file to float32 and save it as safetensors."""
    try:
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise _missing_package(error) from None
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, **_dequantize()
        )
    except (ValueError, KeyError, RuntimeError, OSError, IndexError, AttributeError, NotImplementedError) as error:
        raise CheckpointError(
            f"transformers cannot read it: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "use the safetensors checkpoint that the GGUF file was made from",
            code="CKPT-GGUF",
            where=str(file),
        ) from error
    # transformers 5 keeps both, and refuses to save, though nothing is quantised any more.
    vars(model).pop("hf_quantizer", None)
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder, safe_serialization=True)


def _dequantize() -> dict[str, Any]:
    """The argument that makes transformers 5 unpack the weights; older releases always do."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def _rewrite_pickles(source: Path, files: list[Path], folder: Path) -> None:
    """One safetensors file per pickle, tensors that share storage written out on their own, and an index."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise _missing_package(error) from None
    weight_map: dict[str, str] = {}
    for number, file in enumerate(files, start=1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        tensors = {key: tensor.contiguous().clone() for key, tensor in _tensors(file)}
        weight_map |= dict.fromkeys(tensors, name)
        save_file(tensors, folder / name)
    write_text(folder / INDEX_NAME, json.dumps({"weight_map": weight_map}))
    if (source / "config.json").is_file():
        shutil.copyfile(source / "config.json", folder / "config.json")


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise CheckpointError(
            f"is no pickle of plain tensors ({type(error).__name__})",
            "do not use this file: it is damaged, or it would run code when loaded",
            code="CKPT-PICKLE",
            where=str(file),
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError("holds no state dict", "use another checkpoint", code="CKPT-PICKLE", where=str(file))
    yield from ((key, value) for key, value in state.items() if isinstance(value, torch.Tensor))


def _missing_package(error: ImportError) -> MissingToolError:
    return MissingToolError(
        f"reading this format needs {error.name}", "pip install 'trtkit[reference]'", code="CONV-PACKAGE"
    )
