"""Sources that are no safetensors: GGUF files and pickles, rewritten as safetensors once. Converts no layout.

Both need torch, GGUF needs transformers and gguf too. Pickles are read (pickle_source.py) only where the caller allows.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtkit.artifacts import is_complete, key_of, stage_output
from trtkit.checkpoints.quoted import quoted
from trtkit.checkpoints.weights import is_file
from trtkit.conversion.pickle_source import missing_package, rewrite_pickles
from trtkit.errors import CheckpointError, TrtkitError

_PICKLE_INDEX = "pytorch_model.bin.index.json"
_PICKLE_SINGLE = "pytorch_model.bin"
_DAMAGED = "download it again: its header contradicts its tensors, or it is damaged"
# What transformers reports of a load -> how to say it. Each leaves weights of the model random, or of the file unused.
_LOADING_FAULTS = {
    "mismatched_keys": "holds another shape than its header announces for",
    "missing_keys": "lacks",
    "unexpected_keys": "holds what its header leaves no place for:",
    "conversion_errors": "transformers cannot unpack",
    "error_msgs": "transformers cannot load it:",
}


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
            try:
                if files[0].suffix == ".gguf":
                    _rewrite_gguf(files[0], folder)
                else:
                    rewrite_pickles(source, files, folder)
            except TrtkitError:
                # Nothing that a later run could go on with.
                shutil.rmtree(folder)
                raise
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
    missing = next((file for file in files if not is_file(file)), None)
    if missing is not None:
        raise CheckpointError(
            f"names {quoted(missing.name)}, which is not there",
            "download it again",
            code="CKPT-MISSING",
            where=str(index),
        )
    return files


def _rewrite_gguf(file: Path, folder: Path) -> None:
    """Let transformers dequantise the file to float32 and save it as safetensors."""
    model, loaded, num_layers = _load_gguf(file)
    _refuse_partly_loaded(loaded, file)
    announced = model.config.num_hidden_layers
    if num_layers != announced:
        what = f"holds tensors of {num_layers} layers, but its header announces {announced}"
        raise CheckpointError(what, _DAMAGED, code="CKPT-GGUF", where=str(file))
    # transformers 5 keeps both, and refuses to save, though nothing is quantised any more.
    vars(model).pop("hf_quantizer", None)
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder, safe_serialization=True)


def _load_gguf(file: Path) -> tuple[Any, Mapping[str, Any], int]:
    """The model, what transformers says of loading it, and the layers that the file has tensors of."""
    try:
        import gguf
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise missing_package(error) from None
    # A mismatch is refused by the caller, in words that fit a file and not an option of transformers.
    how: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True, **_dequantize()}
    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, loaded = load(file.parent, gguf_file=file.name, dtype=torch.float32, **how)
        return model, loaded, _num_layers(tensor.name for tensor in gguf.GGUFReader(file).tensors)
    except (ValueError, KeyError, RuntimeError, OSError, IndexError, AttributeError, NotImplementedError) as error:
        raise CheckpointError(
            f"transformers cannot read it: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "use the safetensors checkpoint that the GGUF file was made from",
            code="CKPT-GGUF",
            where=str(file),
        ) from error


def _refuse_partly_loaded(loaded: Mapping[str, Any], file: Path) -> None:
    """Weights that transformers could not fill it leaves random, and says so in the loading info alone."""
    for key, what in _LOADING_FAULTS.items():
        faults = loaded.get(key)
        if faults:
            # A mismatch is (name, stored shape, expected shape), the rest are names.
            names = sorted(quoted(fault[0] if isinstance(fault, tuple) else fault) for fault in faults)
            raise CheckpointError(
                f"{what} {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}",
                _DAMAGED,
                code="CKPT-GGUF",
                where=str(file),
            )


def _num_layers(names: Iterable[str]) -> int:
    """Layers that a GGUF file has tensors of; transformers passes over those that its header does not announce."""
    layers = (name.split(".")[1] for name in names if name.startswith("blk."))
    return 1 + max((int(layer) for layer in layers if layer.isdecimal()), default=-1)


def _dequantize() -> dict[str, Any]:
    """The argument that makes transformers 5 unpack the weights; older releases always do."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}
