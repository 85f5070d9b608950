"""How the weights of a source checkpoint are stored, in the YAML's words. Reads two JSON files, no weights."""

import json
from pathlib import Path

from trtkit.checkpoints.quantized import QUANT_FILE, read_quantized
from trtkit.engines.quant_algo import quantization_of
from trtkit.errors import InputError


def stored_quantization(folder: Path) -> str:
    """What hf_quant_config.json, else config.json, says: "none", "fp8", ..., or the quantiser's own word.

    Raises InputError CKPT-QUANT-CONFIG for a file that does not say it, CheckpointError CKPT-CONFIG for a damaged one.
    """
    path = folder / QUANT_FILE
    if not path.is_file():
        quantized = read_quantized(folder)
        return "none" if quantized is None else quantization_of(quantized.algorithm)
    try:
        algorithm = json.loads(path.read_text(encoding="utf-8"))["quantization"]["quant_algo"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"not a quantization config: {type(error).__name__} {error}",
            "fetch the file again from where the checkpoint comes from",
            code="CKPT-QUANT-CONFIG",
            where=str(path),
        ) from None
    return quantization_of(algorithm)
