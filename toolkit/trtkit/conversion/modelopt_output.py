"""What modelopt left in a directory: completes it, proves that it quantised, lists the files. Knows no modelopt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.artifacts import write_text
from trtkit.checkpoints.quantized import QUANT_FILE
from trtkit.conversion.checksum import crc32_of
from trtkit.conversion.hf_files import copy_hf_files
from trtkit.conversion.modelopt_limits import ModeloptOptions
from trtkit.conversion.rank_writer import WrittenFile
from trtkit.errors import CheckpointError

# What modelopt decides by itself; everything else of config.json is a fact of the model.
_ITS_OWN_KEYS = (
    "dtype",
    "logits_dtype",
    "vocab_size",
    "mapping",
    "quantization",
    "use_parallel_embedding",
    "embedding_sharding_dim",
)


def complete_config(out: Path, config: Mapping[str, Any]) -> None:
    """Put the facts of the model, as `config` has them, into modelopt's config.json.

    modelopt 0.47 looks for them under the names of transformers 4, and with transformers 5 leaves out the base and the
    scaling of rope: an engine of such a checkpoint would turn every head by wrong angles.
    """
    path = out / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in config.items() if key not in _ITS_OWN_KEYS}
    write_text(path, json.dumps(document | facts, indent=2) + "\n")


def complete_hf_folder(source: Path, out: Path) -> None:
    """The source's own config.json with modelopt's quantization_config, and its tokenizer.

    transformers 5 saves rope, expert counts and dtype under new names, which the releases of TensorRT-LLM do not read.
    """
    path = out / "config.json"
    made = json.loads(path.read_text(encoding="utf-8")).get("quantization_config")
    document = json.loads((source / "config.json").read_text(encoding="utf-8"))
    document |= {} if made is None else {"quantization_config": made}
    write_text(path, json.dumps(document, indent=2) + "\n")
    copy_hf_files(source, out)


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
