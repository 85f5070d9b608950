"""Tiny Hugging Face checkpoints with random weights, and a tiny tokenizer, for tests. Knows HF names, no TensorRT-LLM.

Written without transformers and torch, so that a test that only needs a checkpoint starts at once; a test loads every
family with transformers and finds no missing and no unexpected weight.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
SEED = 1234
VOCAB_SIZE = 320

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GEMMA = {
    "head_dim": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_MOE = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1}

# family -> what its config.json holds besides _BASE.
FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        **_MOE,
        "shared_expert_intermediate_size": 80,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 32,
        **_MOE,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
    "gemma": {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", **_GEMMA},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        **_GEMMA,
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **_GEMMA,
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "original_max_position_embeddings": 256,
        "sliding_window": None,
    },
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
}
FAMILIES = tuple(FAMILY_CONFIGS)


def tiny_checkpoint(
    folder: Path, family: str = "llama", dtype: str = "float32", *, tokenizer: bool = False, **overrides: Any
) -> Path:
    """Write a checkpoint into `folder` and return it. `overrides` are keys of config.json, by their usual names.

    dtype: float32, float16 or bfloat16. max_shard_bytes among the overrides splits the weights over several files.
    """
    shard_bytes = overrides.pop("max_shard_bytes", None)
    config = tiny_config(family, dtype, **overrides)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    tensors = {name: tiny_tensor(name, shape) for name, shape in tensor_shapes(family, config)}
    write_weights(folder, tensors, dtype, shard_bytes)
    if tokenizer:
        tiny_tokenizer(folder)
    return folder


def tiny_config(family: str, dtype: str = "float32", **overrides: Any) -> dict[str, Any]:
    """The config.json of a tiny checkpoint."""
    config = {**_BASE, **FAMILY_CONFIGS[family], "dtype": dtype, "torch_dtype": dtype, **overrides}
    return _gpt2_config(config) if family == "gpt2" else config


def _gpt2_config(config: dict[str, Any]) -> dict[str, Any]:
    kept = {key: config[key] for key in ("architectures", "model_type", "vocab_size", "dtype", "torch_dtype")}
    return kept | {
        "n_embd": config["hidden_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "n_positions": config["max_position_embeddings"],
        "n_inner": config["intermediate_size"],
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tiny_tensor(name: str, shape: Shape, seed: int = SEED) -> NDArray[np.float32]:
    """Random values that depend on the name alone: norms near 1 (near 0 where 1 is added later), the rest near 0.

    The spread keeps activations of a few layers around 1, so that attention and logits are far from uniform.
    """
    random = np.random.RandomState((zlib.crc32(name.encode()) ^ seed) & 0xFFFFFFFF)
    values = random.standard_normal(shape).astype(np.float32)
    is_norm = "norm" in name or ".ln_" in name or name.startswith("ln_f") or "transformer.ln_f" in name
    if is_norm and name.endswith("weight"):
        return values * np.float32(0.1) + np.float32(1.0)
    return values * np.float32(0.15)


def tensor_shapes(family: str, config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Names and shapes as transformers saves them."""
    if family == "gpt2":
        yield from _gpt2_shapes(config)
        return
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield from ((prefix + name, shape) for name, shape in _layer_shapes(family, config, layer))
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def _layer_shapes(family: str, config: dict[str, Any], layer: int) -> Iterator[tuple[str, Shape]]:
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family in ("gemma2", "gemma3"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    yield from ((f"{norm}.weight", (hidden,)) for norm in norms)
    if family == "phi3":
        yield "self_attn.qkv_proj.weight", (q + 2 * kv, hidden)
    else:
        yield from ((f"self_attn.{n}_proj.weight", (rows, hidden)) for n, rows in (("q", q), ("k", kv), ("v", kv)))
    yield "self_attn.o_proj.weight", (hidden, q)
    biased = config.get("attention_bias", False)
    if family.startswith("qwen2") or biased:
        yield from ((f"self_attn.{n}_proj.bias", (rows,)) for n, rows in (("q", q), ("k", kv), ("v", kv)))
    if biased:
        yield "self_attn.o_proj.bias", (hidden,)
    if family in ("qwen3", "qwen3_moe", "gemma3"):
        yield from ((f"self_attn.{n}_norm.weight", (head_dim,)) for n in ("q", "k"))
    yield from _mlp_shapes(family, config, layer)


def _mlp_shapes(family: str, config: dict[str, Any], layer: int) -> Iterator[tuple[str, Shape]]:
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    sparse = family in ("qwen2_moe", "qwen3_moe") and layer not in config["mlp_only_layers"]
    if family == "mixtral":
        yield from _expert_shapes("block_sparse_moe", ("w1", "w3", "w2"), config["num_local_experts"], hidden, inter)
    elif sparse:
        names = ("gate_proj", "up_proj", "down_proj")
        yield from _expert_shapes("mlp", names, config["num_experts"], hidden, config["moe_intermediate_size"])
        if family == "qwen2_moe":
            shared = config["shared_expert_intermediate_size"]
            yield from _gated_shapes("mlp.shared_expert", names, hidden, shared)
            yield "mlp.shared_expert_gate.weight", (1, hidden)
    elif family == "phi3":
        yield "mlp.gate_up_proj.weight", (2 * inter, hidden)
        yield "mlp.down_proj.weight", (hidden, inter)
    else:
        yield from _gated_shapes("mlp", ("gate_proj", "up_proj", "down_proj"), hidden, inter)
        if config.get("mlp_bias", False):
            yield from (
                (f"mlp.{n}_proj.bias", (size,)) for n, size in (("gate", inter), ("up", inter), ("down", hidden))
            )


def _gated_shapes(module: str, names: tuple[str, str, str], hidden: int, inter: int) -> Iterator[tuple[str, Shape]]:
    shapes = ((inter, hidden), (inter, hidden), (hidden, inter))
    yield from ((f"{module}.{name}.weight", shape) for name, shape in zip(names, shapes, strict=True))


def _expert_shapes(
    module: str, names: tuple[str, str, str], num_experts: int, hidden: int, inter: int
) -> Iterator[tuple[str, Shape]]:
    yield f"{module}.gate.weight", (num_experts, hidden)
    for expert in range(num_experts):
        yield from _gated_shapes(f"{module}.experts.{expert}", names, hidden, inter)


def _gpt2_shapes(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, inter = config["n_embd"], config["n_inner"]
    yield "transformer.wte.weight", (config["vocab_size"], hidden)
    yield "transformer.wpe.weight", (config["n_positions"], hidden)
    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield from ((f"{prefix}{norm}.{end}", (hidden,)) for end in ("weight", "bias"))
        for name, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, inter),
            ("mlp.c_proj", inter, hidden),
        ):
            yield f"{prefix}{name}.weight", (rows, columns)
            yield f"{prefix}{name}.bias", (columns,)
    yield from ((f"transformer.ln_f.{end}", (hidden,)) for end in ("weight", "bias"))


def write_weights(
    folder: Path, tensors: dict[str, NDArray[np.float32]], dtype: str, shard_bytes: int | None = None
) -> None:
    """Write model.safetensors, or shards of about `shard_bytes` and their index."""
    encoded = {name: encode(values, dtype) for name, values in tensors.items()}
    shards: list[dict[str, NDArray[Any]]] = [{}]
    for name, values in encoded.items():
        held = sum(other.nbytes for other in shards[-1].values())
        if shard_bytes is not None and shards[-1] and held + values.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = values
    if len(shards) == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(shards[0], dtype))
        return
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / file).write_bytes(safetensors_bytes(shard, dtype))
        weight_map |= dict.fromkeys(shard, file)
    total = sum(values.nbytes for values in encoded.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def encode(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The values in `dtype`; bfloat16 (rounded to nearest even) as its bits."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def safetensors_bytes(tensors: dict[str, NDArray[Any]], dtype: str | dict[str, str]) -> bytes:
    """A safetensors file of these tensors; dtype is one name for all, or by tensor a code of the format."""
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        code = _CODES[dtype] if isinstance(dtype, str) else dtype[name]
        header[name] = {"dtype": code, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(values).tobytes() for values in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def tiny_tokenizer(folder: Path) -> Path:
    """A byte-level BPE tokenizer with VOCAB_SIZE entries: 3 special tokens, 256 bytes, and merges of common pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(("<pad>", "<s>", "</s>", *letters))}
    merges = []
    for first in "Ġtaeioshrn":
        for second in "taeioshrn":
            if len(vocab) < VOCAB_SIZE and first + second not in vocab:
                vocab[first + second] = len(vocab)
                merges.append((first, second))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    return folder


def write_json(path: Path, document: Any) -> None:
    """Indented JSON."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
