"""Checkpoint folders with the public config.json facts of known models and a small tokenizer, without weights.

Enough for everything that is decided before the first weight is read: checks, plans, commands, files.
"""

from pathlib import Path
from typing import Any

from tiny import tiny_tokenizer, write_json

_LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def _qwen25(**shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "sliding_window": 131072,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **shape,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.3-70B-Instruct": {
        **_LLAMA3,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "rope_scaling": _llama3_rope(8.0),
    },
    "nvidia/Llama-3.3-70B-Instruct-FP8": {
        **_LLAMA3,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "rope_scaling": _llama3_rope(8.0),
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        **_LLAMA3,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "rope_scaling": _llama3_rope(8.0),
    },
    "meta-llama/Llama-3.2-1B-Instruct": {
        **_LLAMA3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_scaling": _llama3_rope(32.0),
    },
    "Qwen/Qwen2.5-72B-Instruct": _qwen25(
        vocab_size=152064,
        hidden_size=8192,
        intermediate_size=29568,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_window_layers=80,
        tie_word_embeddings=False,
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen25(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_window_layers=21,
        tie_word_embeddings=True,
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


_QUANT_CONFIGS = {
    "nvidia/Llama-3.3-70B-Instruct-FP8": {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
}


def write_known_model(name: str, cache: Path) -> Path:
    """The folder of a hub id in trtkit's cache at `cache`, holding config.json and a tokenizer."""
    folder = cache / "checkpoints" / name.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIGS[name])
    if name in _QUANT_CONFIGS:
        write_json(folder / "hf_quant_config.json", _QUANT_CONFIGS[name])
    tiny_tokenizer(folder)
    return folder


def fill_cache(cache: Path) -> Path:
    """All known models in one cache; returns it."""
    for name in CONFIGS:
        write_known_model(name, cache)
    return cache
