"""Public config.json facts of real models, as whole checkpoint folders: sparse weight files, and a small tokenizer.

A sparse file has a true safetensors header and the full size, and takes no disk; nothing reads its data.
"""

import json
from pathlib import Path
from typing import Any

from deployments import write_tokenizer
from known_models import CONFIGS as PAIRS
from tiny import tensor_shapes, write_json

_SIZES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
_COMMON = {
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def _model(family: str, architecture: str, shape: tuple[int, ...], **rest: Any) -> dict[str, Any]:
    """shape: layers, hidden, intermediate, heads, KV heads, vocabulary, positions."""
    layers, hidden, inter, heads, kv_heads, vocab, positions = shape
    return {
        **_COMMON,
        "architectures": [architecture],
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        **rest,
    }


def _llama(*shape: int, **rest: Any) -> dict[str, Any]:
    return _model("llama", "LlamaForCausalLM", shape, **rest)


def _qwen3(*shape: int, **rest: Any) -> dict[str, Any]:
    window = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": shape[0]}
    return _model("qwen3", "Qwen3ForCausalLM", shape, head_dim=128, rope_theta=1000000, **window, **rest)


_GEMMA = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_LONG_ROPE = {"type": "longrope", "short_factor": [1.05] * 48, "long_factor": [1.5] * 48}

CONFIGS: dict[str, dict[str, Any]] = {
    **PAIRS,
    "meta-llama/Llama-2-7b-hf": _llama(32, 4096, 11008, 32, 32, 32000, 4096, torch_dtype="float16"),
    "meta-llama/Llama-2-70b-hf": _llama(80, 8192, 28672, 64, 8, 32000, 4096, torch_dtype="float16"),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(22, 2048, 5632, 32, 4, 32000, 2048),
    "meta-llama/Meta-Llama-3-70B-Instruct": _llama(80, 8192, 28672, 64, 8, 128256, 8192, rope_theta=500000.0),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _llama(
        24, 2048, 8192, 32, 32, 49152, 8192, rope_theta=130000, tie_word_embeddings=True
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(
        30, 576, 1536, 9, 3, 49152, 8192, rope_theta=100000, tie_word_embeddings=True
    ),
    "mistralai/Mistral-7B-v0.1": _model(
        "mistral", "MistralForCausalLM", (32, 4096, 14336, 32, 8, 32000, 32768), sliding_window=4096
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": _model(
        "mistral",
        "MistralForCausalLM",
        (32, 4096, 14336, 32, 8, 32768, 32768),
        sliding_window=None,
        rope_theta=1000000.0,
    ),
    "Qwen/Qwen2-1.5B": _model(
        "qwen2",
        "Qwen2ForCausalLM",
        (28, 1536, 8960, 12, 2, 151936, 131072),
        use_sliding_window=False,
        sliding_window=131072,
        max_window_layers=28,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen2.5-7B-Instruct": _model(
        "qwen2",
        "Qwen2ForCausalLM",
        (28, 3584, 18944, 28, 4, 152064, 32768),
        use_sliding_window=False,
        sliding_window=131072,
        max_window_layers=28,
        rope_theta=1000000.0,
    ),
    "Qwen/Qwen3-32B": _qwen3(64, 5120, 25600, 64, 8, 151936, 40960),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, 8, 151936, 40960),
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, 8, 151936, 40960, tie_word_embeddings=True),
    "google/gemma-7b": _model(
        "gemma", "GemmaForCausalLM", (28, 3072, 24576, 16, 16, 256000, 8192), head_dim=256, **_GEMMA
    ),
    "google/gemma-2-27b": _model(
        "gemma2",
        "Gemma2ForCausalLM",
        (46, 4608, 36864, 32, 16, 256000, 8192),
        head_dim=128,
        query_pre_attn_scalar=144,
        sliding_window=4096,
        final_logit_softcapping=30.0,
        attn_logit_softcapping=50.0,
        **_GEMMA,
    ),
    "microsoft/Phi-3-mini-4k-instruct": _model(
        "phi3",
        "Phi3ForCausalLM",
        (32, 3072, 8192, 32, 32, 32064, 4096),
        sliding_window=2047,
        original_max_position_embeddings=4096,
        rope_scaling=None,
    ),
    "microsoft/Phi-3-mini-128k-instruct": _model(
        "phi3",
        "Phi3ForCausalLM",
        (32, 3072, 8192, 32, 32, 32064, 131072),
        sliding_window=262144,
        original_max_position_embeddings=4096,
        rope_scaling=_LONG_ROPE,
    ),
    "openai-community/gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "n_ctx": 1024,
        "vocab_size": 50257,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
}


def write_real_model(name: str, cache: Path, tokenizer: dict[str, Any] | None = None) -> Path:
    """The folder of a hub id in trtkit's cache at `cache`."""
    folder = cache / "checkpoints" / name.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name]
    write_json(folder / "config.json", config)
    write_tokenizer(folder, tokenizer or {})
    write_sparse_weights(folder / "model.safetensors", config)
    return folder


def write_sparse_weights(path: Path, config: dict[str, Any]) -> None:
    """A safetensors file with every tensor that transformers would save, and a hole in the place of the data."""
    code, size = _SIZES[config.get("torch_dtype", "float32")]
    inner = {**config, "n_inner": config.get("n_inner") or 4 * config.get("n_embd", 0)}
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in tensor_shapes(config["model_type"], inner):
        stop = offset + size * _product(shape)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
