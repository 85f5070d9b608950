"""The engine directory of the reference backend: limits and a pointer to the checkpoint, no copied weights."""

import json
import os
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.engines.inspect import REFERENCE_KEY
from trtkit.engines.spec import EngineSpec


def write_reference_engine(spec: EngineSpec, checkpoint: Path, out: Path, final: Path, version: str) -> None:
    """Write `out`/config.json in the shape of a TensorRT-LLM engine's, for the directory that will be `final`.

    `version` is the TensorRT-LLM version that the checkpoint is for. The pointer to the checkpoint is relative, so
    that a build directory may be moved or mounted as a whole.
    """
    pretrained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    document = {
        "version": version,
        "pretrained_config": pretrained,
        "build_config": {
            "max_batch_size": spec.max_batch_size,
            "max_input_len": spec.max_input_len,
            "max_seq_len": spec.built_max_seq_len,
            "max_num_tokens": spec.max_num_tokens,
            "max_beam_width": 1,
            "max_draft_len": spec.max_draft_len,
            "plugin_config": {"tokens_per_block": spec.block_size, "use_paged_context_fmha": True},
        },
        REFERENCE_KEY: {"checkpoint": os.path.relpath(checkpoint, final)},
    }
    write_text(out / "config.json", json.dumps(document, indent=2) + "\n")
