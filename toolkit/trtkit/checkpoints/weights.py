"""Weights: every tensor of a checkpoint folder by name, read lazily through memory maps. Knows no architecture.

Reading the headers of a 70B checkpoint takes milliseconds; data is mapped when a tensor is asked for.
"""

import json
import mmap
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from trtkit.checkpoints.quoted import quoted
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.checkpoints.stored_tensor import StoredTensor, bits_of
from trtkit.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Weights(Mapping[str, StoredTensor]):
    """Name -> StoredTensor, with the bytes of each on demand."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = dict(tensors)
        self._maps: dict[Path, mmap.mmap] = {}

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors, sorted."""
        return sorted({tensor.file for tensor in self._tensors.values()})

    def array(self, name: str) -> NDArray[Any]:
        """A read-only view of the tensor in its shape; bfloat16 and FP8 come as their bits (uint16, uint8)."""
        tensor = self._tensors[name]
        flat = np.frombuffer(self._map(tensor.file), dtype=np.uint8)[tensor.start : tensor.stop]
        return flat.view(bits_of(tensor.dtype)).reshape(tensor.shape)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as handle:
                self._maps[file] = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def open_weights(folder: Path) -> Weights:
    """Read the headers of every safetensors file that `folder` announces.

    Raises CheckpointError: the codes of read_header, CKPT-MISSING (no weights, or a shard or tensor of the index is not
    there), CKPT-INDEX (the index is damaged), CKPT-PATH (a shard outside the folder), CKPT-PICKLE, CKPT-DUPLICATE.
    """
    index = folder / INDEX_NAME
    return Weights(_indexed(folder, index) if index.is_file() else _collect(weight_files(folder)))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that `folder` announces; none is read. Raises CheckpointError as open_weights."""
    index = folder / INDEX_NAME
    if index.is_file():
        return list(_shards(folder, index, _read_index(index)).values())
    single = folder / SINGLE_NAME
    if single.is_file():
        return [single]
    others = sorted(folder.glob("*.safetensors"))
    if len(others) != 1:
        _refuse_without_safetensors(folder, others)
    return others


def _shards(folder: Path, index: Path, weight_map: Mapping[str, str]) -> dict[str, Path]:
    """Name in the index -> the file."""
    shards = {name: _shard_path(folder, index, name) for name in sorted(set(weight_map.values()))}
    for name, path in shards.items():
        if not is_file(path):
            raise CheckpointError(
                f"names the shard {quoted(name)}, which is not there",
                "download the checkpoint again; a shard is missing",
                code="CKPT-MISSING",
                where=str(index),
            )
    return shards


def _indexed(folder: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = _read_index(index)
    shards = _shards(folder, index, weight_map)
    tensors = _collect(list(shards.values()))
    for tensor, shard in weight_map.items():
        if tensor not in tensors or tensors[tensor].file != shards[shard]:
            raise CheckpointError(
                f"says that {quoted(tensor)} is in {quoted(shard)}, but it is not",
                "download the index and the shards again; they do not belong together",
                code="CKPT-MISSING",
                where=str(index),
            )
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    try:
        document = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _index_error(index, f"is not readable JSON ({type(error).__name__})") from None
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _index_error(index, "holds no weight_map")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _index_error(index, "maps a tensor to something that is no file name")
    unprintable = next((name for name in chain(weight_map, weight_map.values()) if not name.isprintable()), None)
    if unprintable is not None:
        raise _index_error(index, f"names {quoted(unprintable)}, which cannot be printed")
    return weight_map


def _shard_path(folder: Path, index: Path, name: str) -> Path:
    """The shard's path; it may be a link (the hub's cache is made of them), but its name stays in the folder."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\\" in name or "\0" in name:
        raise CheckpointError(
            f"names the shard {quoted(name)}, which lies outside the folder",
            "do not use this checkpoint: its index reaches for other files",
            code="CKPT-PATH",
            where=str(index),
        )
    return folder / pure


def is_file(path: Path) -> bool:
    """Whether a name that somebody else chose is a file's."""
    try:
        return path.is_file()
    except OSError:  # A name longer than any file may have.
        return False


def _collect(files: list[Path]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in tensors:
                raise CheckpointError(
                    f"holds {quoted(tensor.name)}, which {tensors[tensor.name].file.name} holds too",
                    "remove the file that does not belong to this checkpoint",
                    code="CKPT-DUPLICATE",
                    where=str(file),
                )
            tensors[tensor.name] = tensor
    return tensors


def _index_error(index: Path, what: str) -> CheckpointError:
    return CheckpointError(what, "download the index again", code="CKPT-INDEX", where=str(index))


def _refuse_without_safetensors(folder: Path, others: list[Path]) -> NoReturn:
    if others:
        raise CheckpointError(
            f"holds {len(others)} safetensors files and no {INDEX_NAME}",
            "download the index too, it says which files belong together",
            code="CKPT-INDEX",
            where=str(folder),
        )
    pickles = sorted(path for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"holds its weights as a pickle ({pickles[0].name}), and loading a pickle runs code from it",
            "save it as safetensors: model.save_pretrained(folder, safe_serialization=True) in transformers, or allow "
            "this one with --allow-pickle (read with weights_only)",
            code="CKPT-PICKLE",
            where=str(folder),
        )
    raise CheckpointError(
        "holds no safetensors weights",
        "give the folder of a Hugging Face checkpoint (config.json and model*.safetensors)",
        code="CKPT-MISSING",
        where=str(folder),
    )
