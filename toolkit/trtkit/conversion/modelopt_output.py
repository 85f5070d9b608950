"""What modelopt left in a directory: proves that it quantised, and lists the files. Knows formats, not modelopt."""

import json
from pathlib import Path
from typing import Any

from trtkit.checkpoints.quantized import QUANT_FILE
from trtkit.conversion.checksum import crc32_of
from trtkit.conversion.modelopt_limits import ModeloptOptions
from trtkit.conversion.rank_writer import WrittenFile
from trtkit.errors import CheckpointError


def exported_files(out: Path, options: ModeloptOptions) -> list[WrittenFile]:
    """The weight files, with checksums. Raises CheckpointError CONV-MODELOPT when the config names no quantisation."""
    name = QUANT_FILE if options.format == "hf" else "config.json"
    try:
        document: dict[str, Any] = json.loads((out / name).read_text(encoding="utf-8"))
        quantized = bool(document["quantization"]["quant_algo"])
    except (OSError, ValueError, KeyError, TypeError):
        quantized = False
    if not quantized:
        raise CheckpointError(
            f"modelopt wrote a checkpoint whose {name} names no quantisation",
            "choose fp8, int8_weight_only or int4_weight_only, which trtkit writes itself (docs/conversion.md)",
            code="CONV-MODELOPT",
            where=str(out),
        )
    weights = sorted(out.glob("*.safetensors"), key=lambda path: (len(path.name), path.name))
    return [WrittenFile(path.name, path.stat().st_size, crc32_of(path), skipped=False) for path in weights]
