"""Recorded conversions of TensorRT-LLM's own converter: the records, and their inputs rebuilt byte for byte.

tests/golden/README.md describes the file. Knows nothing of trtkit.
"""

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from numpy.typing import NDArray

RECORDS = Path(__file__).parent / "golden" / "conversions.json.gz"
_SEED = 20240607
Facts = dict[str, tuple[str, tuple[int, ...], str]]
"""Tensor name -> (dtype, shape, sha256 of its bytes)."""


@dataclass(frozen=True)
class Case:
    """One conversion: `ranks` as they were written; `unprocessed` holds weight-only weights before their packing."""

    id: str
    input: str
    options: dict[str, Any]
    legacy: bool
    config: dict[str, Any]
    ranks: tuple[Facts, ...]
    unprocessed: tuple[Facts, ...]
    error: str | None
    known_bad: str | None


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDS.read_bytes()))
    return document


def _facts(rows: list[list[Any]]) -> Facts:
    hashes = _document()["sha256"]
    return {name: (dtype, tuple(shape), hashes[index]) for name, dtype, shape, index in rows}


@cache
def cases() -> tuple[Case, ...]:
    """Every recorded conversion."""
    document = _document()
    tables = [_facts(rows) for rows in document["tables"]]
    return tuple(
        Case(
            id=case["id"],
            input=case["input"],
            options={key: value for key, value in case["options"].items() if key != "legacy"},
            legacy=case["converter"] == "legacy",
            config=document["configs"][case["config"]] if "config" in case else {},
            ranks=tuple(tables[index] for index in case.get("ranks", [])),
            unprocessed=tuple(tables[index] for index in case.get("unprocessed", [])),
            error=case.get("error"),
            known_bad=case.get("known_bad"),
        )
        for case in document["cases"]
    )


def input_names() -> list[str]:
    """The names of all inputs."""
    return sorted(_document()["inputs"])


def input_facts(name: str) -> Facts:
    """What every tensor of an input must be."""
    return _facts(_document()["inputs"][name]["tensors"])


def write_input(name: str, folder: Path) -> Path:
    """Rebuild an input as a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = input_facts(name)
    dtype = name.rsplit("-", 1)[1]
    tiny.write_json(folder / "config.json", _document()["inputs"][name]["config"])
    tiny.write_weights(folder, {tensor: _values(tensor, shape) for tensor, (_, shape, _) in facts.items()}, dtype)
    return folder


def _values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Whole numbers from a frozen random stream that the name seeds, scaled: norms 1 +- 0.25, the rest +- 0.08."""
    stream = np.random.RandomState((zlib.crc32(name.encode()) ^ _SEED) & 0xFFFFFFFF)
    unit = stream.randint(-32768, 32768, size=shape).astype(np.float32) / np.float32(32768)
    is_norm = ("norm" in name.lower() or ".ln_" in name.lower()) and name.endswith("weight")
    return unit * np.float32(0.25) + np.float32(1.0) if is_norm else unit * np.float32(0.08)


def facts_of(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> Facts:
    """The facts of tensors given as (dtype, shape, bytes)."""
    return {n: (dtype, shape, hashlib.sha256(data).hexdigest()) for n, (dtype, shape, data) in tensors.items()}
