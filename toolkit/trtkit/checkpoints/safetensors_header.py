"""The header of one safetensors file, read and proven before a byte of data is touched. Knows no model and no index.

Layout (safetensors format): 8 bytes little-endian length N, N bytes of JSON {name: {"dtype", "shape", "data_offsets"}},
then the data; offsets count from the end of the JSON, and the tensors fill the data without gap or overlap.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from trtkit.checkpoints.quoted import quoted
from trtkit.checkpoints.stored_tensor import StoredTensor, dtype_of_code, itemsize_of
from trtkit.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 32
"""Axes a tensor may have: numpy's limit. The product of hundreds of thousands of sizes would take minutes."""
_LFS_START = b"version https://git-lfs"
# Zip (which torch.save writes), pickles of protocols 2 to 5, GGUF.
_OTHER_FORMATS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"GGUF")
_DOWNLOAD_AGAIN = "download this file again, or copy it anew from where it is whole"


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of `path`, ordered by their place in the file.

    Raises CheckpointError: CKPT-LFS (a Git-LFS pointer), CKPT-TRUNCATED (fewer bytes than announced), CKPT-HEADER (not
    safetensors, or no valid JSON), CKPT-DUPLICATE (a name twice), CKPT-DTYPE, CKPT-OFFSETS (gaps, overlaps, sizes
    that contradict the shape).
    """
    text, data_start, file_bytes = _read_json(path)
    entries = _parse(text, path)
    entries.pop("__metadata__", None)
    tensors = [_tensor(name, entry, path, data_start) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    _prove_cover(tensors, path, data_start, file_bytes)
    return tensors


def _read_json(path: Path) -> tuple[bytes, int, int]:
    """The JSON bytes, where the data starts, and the size of the file."""
    try:
        with path.open("rb") as file:
            file_bytes = file.seek(0, 2)
            file.seek(0)
            first = file.read(64)
            length = int.from_bytes(first[:8], "little")
            _refuse_foreign(path, first, length, file_bytes)
            _refuse_length(path, length, file_bytes)
            file.seek(8)
            return file.read(length), 8 + length, file_bytes
    except OSError as error:
        raise CheckpointError(
            f"cannot be read: {error.strerror}", "check the path and its permissions", code="CKPT-READ", where=str(path)
        ) from error


def _refuse_foreign(path: Path, first: bytes, length: int, file_bytes: int) -> None:
    """Name the formats that people rename. Their first bytes may also be a length: 640 is 80 02, as a pickle starts."""
    if first.startswith(_LFS_START):
        raise CheckpointError(
            f"is a Git-LFS pointer of {file_bytes} bytes, not weights",
            "run `git lfs pull` in the folder, or download the files from the hub",
            code="CKPT-LFS",
            where=str(path),
        )
    if file_bytes < 10:
        raise CheckpointError(f"has only {file_bytes} bytes", _DOWNLOAD_AGAIN, code="CKPT-TRUNCATED", where=str(path))
    is_header = length <= MAX_HEADER_BYTES and first[8:9] == b"{"
    if not is_header and first.startswith(_OTHER_FORMATS):
        _bad(path, "is not a safetensors file (its first bytes belong to another format)")


def _refuse_length(path: Path, length: int, file_bytes: int) -> None:
    if length > MAX_HEADER_BYTES:
        _bad(path, f"announces a header of {length} bytes; {MAX_HEADER_BYTES} is the most the format allows")
    if 8 + length > file_bytes:
        raise CheckpointError(
            f"announces a header of {length} bytes but has {file_bytes} bytes in all",
            _DOWNLOAD_AGAIN,
            code="CKPT-TRUNCATED",
            where=str(path),
        )


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """Decode the JSON object; a name that appears twice is refused, since the second would hide the first."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            twice = min(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise CheckpointError(
                f"names {quoted(twice)} twice in its header", _DOWNLOAD_AGAIN, code="CKPT-DUPLICATE", where=str(path)
            )
        return names

    try:
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _bad(path, f"has a header that is not JSON ({type(error).__name__})")
    if not isinstance(entries, dict):
        _bad(path, "has a header that is no JSON object")
    return entries


def _tensor(name: str, entry: Any, path: Path, data_start: int) -> StoredTensor:
    if not name.isprintable():
        _bad(path, f"names a tensor {quoted(name)}, which cannot be printed")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        _bad(path, f"describes {quoted(name)} without dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = dtype_of_code(code) if isinstance(code, str) else None
    if dtype is None:
        raise CheckpointError(
            f"{quoted(name)} has dtype {quoted(code)}",
            "convert the checkpoint to float32, float16, bfloat16 or FP8 first",
            code="CKPT-DTYPE",
            where=str(path),
        )
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        _bad(path, f"describes {quoted(name)} with a shape or offsets that are no lists of at most {MAX_RANK} sizes")
    tensor = StoredTensor(name, dtype, tuple(shape), path, data_start + offsets[0], data_start + offsets[1])
    needed_bytes = tensor.num_elements * itemsize_of(dtype)
    if tensor.num_bytes != needed_bytes:
        raise CheckpointError(
            f"{quoted(name)} of shape {quoted(shape)} and dtype {dtype} needs {quoted(needed_bytes)} bytes, "
            f"its offsets hold {tensor.num_bytes}",
            _DOWNLOAD_AGAIN,
            code="CKPT-OFFSETS",
            where=str(path),
        )
    return tensor


def _are_sizes(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        return False
    return all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _prove_cover(tensors: list[StoredTensor], path: Path, data_start: int, file_bytes: int) -> None:
    """Every byte of the data belongs to exactly one tensor."""
    reached = data_start
    for tensor in tensors:
        if tensor.stop > file_bytes:
            raise CheckpointError(
                f"ends at byte {file_bytes}, but {quoted(tensor.name)} reaches to byte {tensor.stop}",
                _DOWNLOAD_AGAIN,
                code="CKPT-TRUNCATED",
                where=str(path),
            )
        if tensor.start != reached:
            kind = "overlaps the tensor before it" if tensor.start < reached else "leaves a gap before it"
            raise CheckpointError(
                f"{quoted(tensor.name)} {kind}", _DOWNLOAD_AGAIN, code="CKPT-OFFSETS", where=str(path)
            )
        reached = tensor.stop
    if reached != file_bytes:
        raise CheckpointError(
            f"holds {file_bytes - reached} bytes that belong to no tensor",
            _DOWNLOAD_AGAIN,
            code="CKPT-OFFSETS",
            where=str(path),
        )


def _bad(path: Path, what: str) -> NoReturn:
    raise CheckpointError(what, _DOWNLOAD_AGAIN, code="CKPT-HEADER", where=str(path))
