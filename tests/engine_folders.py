"""Engine directories of TensorRT-LLM for tests: what trtllm-build writes, with engine files that are empty."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Edit = Callable[[dict[str, Any]], None]


def engine_document() -> dict[str, Any]:
    """A TensorRT-LLM engine's config.json as trtllm-build 1.2.1 writes it, reduced to what is read."""
    return {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "logits_dtype": "float32",
            "vocab_size": 128256,
            "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        },
        "build_config": {
            "max_batch_size": 8,
            "max_input_len": 2048,
            "max_seq_len": 3077,
            "max_num_tokens": 8192,
            "max_draft_len": 5,
            "speculative_decoding_mode": 2,
            "gather_context_logits": False,
            "plugin_config": {"tokens_per_block": 32, "use_paged_context_fmha": True, "streamingllm": False},
        },
    }


def write_engine(folder: Path, edit: Edit | None = None, ranks: int = 2) -> Path:
    """An engine directory; the engine files are empty, since no check opens them."""
    document = engine_document()
    if edit is not None:
        edit(document)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").touch()
    return folder
