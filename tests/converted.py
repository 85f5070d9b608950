"""Reads converted checkpoints back for tests, independently of the converter. Knows safetensors files, no families."""

import json
from pathlib import Path
from typing import Any

Tensor = tuple[str, tuple[int, ...], bytes]
"""dtype, shape, bytes."""

_NAMES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I8": "int8",
    "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn",
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: (
            _NAMES[entry["dtype"]],
            tuple(entry["shape"]),
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def read_ranks(folder: Path) -> list[dict[str, Tensor]]:
    """The rank files of a checkpoint, in order."""
    count = len(list(folder.glob("rank*.safetensors")))
    return [read_tensors(folder / f"rank{rank}.safetensors") for rank in range(count)]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config
