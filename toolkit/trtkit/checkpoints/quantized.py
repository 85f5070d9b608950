"""Says whether a Hugging Face checkpoint is quantised already, by whom and how. Reads two JSON files, no weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checkpoints.json_fields import read_json_fields

QUANT_FILE = "hf_quant_config.json"


@dataclass(frozen=True)
class QuantizedSource:
    """method: who quantised it ("modelopt", "compressed-tensors", "awq", ...).

    algorithm: of the weights, None when only the cache's scales are there. kv_algorithm: "FP8", "INT8" or None.
    """

    method: str
    algorithm: str | None
    kv_algorithm: str | None


def read_quantized(folder: Path) -> QuantizedSource | None:
    """What hf_quant_config.json, or quantization_config in config.json, says; None for unquantised weights.

    Raises CheckpointError CKPT-CONFIG when one of the files is damaged.
    """
    path = folder / QUANT_FILE
    if path.is_file():
        document = read_json_fields(path)
        section = document.object("quantization")
        if section is None or "quant_algo" not in section.values:
            document.bad("quantization", "does not say how the weights are quantised (quant_algo)")
        algorithm, kv_algorithm = (
            section.text(key) if section.has(key) else None for key in ("quant_algo", "kv_cache_quant_algo")
        )
        if algorithm or kv_algorithm:
            return QuantizedSource("modelopt", algorithm, kv_algorithm)
    section = read_json_fields(folder / "config.json").object("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "unnamed")
    return QuantizedSource(
        method, str(section.values.get("quant_algo") or method).upper(), _kv_algorithm(section.values)
    )


def _kv_algorithm(values: dict[str, Any]) -> str | None:
    """compressed-tensors describes the cache as {"type": "float", "num_bits": 8}; ModelOpt names the algorithm."""
    scheme = values.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        return "FP8" if scheme.get("type") == "float" else "INT8"
    algorithm = values.get("kv_cache_quant_algo")
    return algorithm if isinstance(algorithm, str) else None
