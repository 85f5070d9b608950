"""How the weights of a source checkpoint are stored, in the YAML's words. Reads two JSON files, no weights."""

from pathlib import Path

from trtkit.checkpoints.quantized import read_quantized
from trtkit.engines.quant_algo import quantization_of


def stored_quantization(folder: Path) -> str:
    """What hf_quant_config.json, else config.json, says: "none", "fp8", ..., or the quantiser's own word.

    Raises CheckpointError CKPT-CONFIG for a file that is damaged or does not say it.
    """
    quantized = read_quantized(folder)
    return "none" if quantized is None else quantization_of(quantized.algorithm)
