"""Puts the ranks of a converted checkpoint together again as Hugging Face tensors: the converter's independent witness.

Written from the format's description, not from the converter's tables: it reads config.json and rank files, undoes
quantisation, parallelism, fusion and renaming, and returns float32 arrays under Hugging Face names.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from converted import Tensor, read_config, read_ranks
from numpy.typing import NDArray
from trtkit.checkpoints.weight_only_layout import unpack_weight_only

Array = NDArray[np.float32]
Rank = dict[str, Array]
_TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
}
_GPT2 = {
    "input_layernorm": "ln_1",
    "post_layernorm": "ln_2",
    "attention.qkv": "attn.c_attn",
    "attention.dense": "attn.c_proj",
    "mlp.fc": "mlp.c_fc",
    "mlp.proj": "mlp.c_proj",
}


def hf_tensors(folder: Path, arch: int = 80) -> dict[str, Array]:
    """Hugging Face name -> float32 values, from the checkpoint in `folder`. arch: of weight-only packing."""
    config = read_config(folder)
    ranks = [_dequantized(rank, config, arch) for rank in read_ranks(folder)]
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    merged: dict[str, Array] = {}
    first_layer = 0
    for stage in range(pp):
        members = ranks[stage * tp : (stage + 1) * tp]
        layers = {int(name.split(".")[2]) for name in members[0] if name.startswith("transformer.layers.")}
        assert layers == set(range(len(layers))), "layers of a stage are numbered from 0"
        for name in members[0]:
            parts = name.split(".")
            if parts[1] == "layers":
                parts[2] = str(int(parts[2]) + first_layer)
            merged[".".join(parts)] = _join_ranks(name, [member[name] for member in members], config)
        first_layer += len(layers)
    assert first_layer == config["num_hidden_layers"]
    return dict(_renamed(merged, config))


def to_float(tensor: Tensor) -> Array:
    """The values of a stored tensor."""
    dtype, shape, data = tensor
    values = torch.frombuffer(bytearray(data), dtype=_TORCH[dtype]) if data else torch.empty(0)
    return values.to(torch.float32).reshape(shape).numpy()


def _dequantized(rank: dict[str, Tensor], config: dict[str, Any], arch: int) -> Rank:
    """Float values of every tensor, weights multiplied with their scales; the scales themselves are left out."""
    values: Rank = {}
    for name, tensor in rank.items():
        stem, _, end = name.rpartition(".")
        if end not in ("weight", "bias"):
            continue
        if f"{stem}.per_channel_scale" in rank and end == "weight" and tensor[0] == "int8":
            values[name] = _weight_only(tensor, to_float(rank[f"{stem}.per_channel_scale"]), config, arch)
        elif f"{stem}.per_channel_scale" in rank and end == "weight":
            values[name] = to_float(tensor) * to_float(rank[f"{stem}.per_channel_scale"])[..., None]
        elif f"{stem}.weights_scaling_factor" in rank and end == "weight":
            scale = to_float(rank[f"{stem}.weights_scaling_factor"])
            values[name] = to_float(tensor) * (scale[..., None] if scale.ndim == 2 else scale)
        else:
            values[name] = to_float(tensor)
    return values


def _weight_only(tensor: Tensor, scale: Array, config: dict[str, Any], arch: int) -> Array:
    _, shape, data = tensor
    bits = 8 if config["quantization"]["quant_algo"] == "W8A16" else 4
    packed = np.frombuffer(data, dtype=np.int8).reshape(-1, *shape[-2:])
    matrices = [unpack_weight_only(matrix, bits, arch).T.astype(np.float32) for matrix in packed]
    stacked = np.stack(matrices) if len(shape) == 3 else matrices[0]
    return stacked * scale[..., None]


def _join_ranks(name: str, parts: list[Array], config: dict[str, Any]) -> Array:
    """Undo tensor and expert parallelism."""
    if name in ("lm_head.weight", "transformer.vocab_embedding.weight"):
        return _join_vocabulary(name, parts, config)
    if "attention.qkv" in name:
        return _join_qkv(parts, config)
    if ".mlp." in name and parts[0].ndim == 3:
        return _join_experts(name, parts, config)
    if name.endswith(("attention.dense.weight", "mlp.proj.weight", "shared_expert.proj.weight")):
        return np.concatenate(parts, axis=1)
    if name.endswith("shared_expert.fc.weight") or (name.endswith("mlp.fc.weight") and _is_fused(config)):
        return _join_halves(parts)
    if ".mlp.fc." in name or ".mlp.gate." in name:
        return np.concatenate(parts)
    assert all(np.array_equal(part, parts[0]) for part in parts), f"{name} differs between ranks"
    return parts[0]


def _join_vocabulary(name: str, parts: list[Array], config: dict[str, Any]) -> Array:
    """The head is always cut by rows; the embedding as the config says. Padding rows are zero and go."""
    if name != "lm_head.weight" and not config["use_parallel_embedding"]:
        assert all(np.array_equal(part, parts[0]) for part in parts), f"{name} differs between ranks"
        return parts[0]
    axis = 0 if name == "lm_head.weight" else config["embedding_sharding_dim"]
    return _unpadded(np.concatenate(parts, axis=axis), config)


def _unpadded(rows: Array, config: dict[str, Any]) -> Array:
    vocab = config["vocab_size"]
    assert not rows[vocab:].any(), "padding rows are zero"
    return rows[:vocab]


def _is_fused(config: dict[str, Any]) -> bool:
    return config["architecture"] == "Phi3ForCausalLM"


def _join_halves(parts: list[Array]) -> Array:
    """Each rank holds [its part of up; its part of gate]."""
    halves = [np.split(part, 2, axis=-2) for part in parts]
    return np.concatenate([np.concatenate([half[index] for half in halves], axis=-2) for index in (0, 1)], axis=-2)


def _join_experts(name: str, parts: list[Array], config: dict[str, Any]) -> Array:
    moe_tp, moe_ep = config["mapping"]["moe_tp_size"], config["mapping"]["moe_ep_size"]
    groups = []
    for expert_rank in range(moe_ep):
        members = [parts[tensor * moe_ep + expert_rank] for tensor in range(moe_tp)]
        groups.append(_join_halves(members) if ".fc." in name else np.concatenate(members, axis=2))
    return np.concatenate(groups)


def _join_qkv(parts: list[Array], config: dict[str, Any]) -> Array:
    """Each rank holds [its q heads; its k heads; its v heads]; heads that ranks share must be equal on them."""
    tp, head = len(parts), config["head_size"]
    kv_heads = config["num_key_value_heads"]
    q_rows = config["num_attention_heads"] // tp * head
    kv_rows = max(1, kv_heads // tp) * head
    q, k, v = [], {}, {}
    for rank, part in enumerate(parts):
        assert len(part) == q_rows + 2 * kv_rows
        q.append(part[:q_rows])
        first = rank * kv_heads // tp
        for heads, rows in ((k, part[q_rows : q_rows + kv_rows]), (v, part[q_rows + kv_rows :])):
            for index in range(kv_rows // head):
                own = rows[index * head : (index + 1) * head]
                assert np.array_equal(heads.setdefault(first + index, own), own), "shared heads are equal"
    assert sorted(k) == sorted(v) == list(range(kv_heads))
    return np.concatenate([*q, *(k[h] for h in range(kv_heads)), *(v[h] for h in range(kv_heads))])


def _renamed(merged: dict[str, Array], config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    gpt2 = config["architecture"].startswith("GPT2")
    minus_one = 1.0 if config["architecture"].startswith("Gemma") else 0.0
    ends = {
        "transformer.vocab_embedding.weight": "transformer.wte.weight" if gpt2 else "model.embed_tokens.weight",
        "transformer.position_embedding.weight": "transformer.wpe.weight",
        "lm_head.weight": "lm_head.weight",
        "transformer.ln_f.bias": "transformer.ln_f.bias",
    }
    for name, values in merged.items():
        if name == "transformer.ln_f.weight":
            yield "transformer.ln_f.weight" if gpt2 else "model.norm.weight", values - np.float32(minus_one)
        elif name in ends:
            yield ends[name], values
        else:
            _, _, layer, rest = name.split(".", 3)
            stem, end = rest.rsplit(".", 1)
            if gpt2:
                transposed = values.T if values.ndim == 2 else values
                yield f"transformer.h.{layer}.{_GPT2[stem]}.{end}", transposed
            elif stem in _NORMS:
                yield f"model.layers.{layer}.{_NORMS[stem]}.{end}", values - np.float32(minus_one)
            else:
                for part, piece in _unfused(stem, values, config):
                    yield f"model.layers.{layer}.{part}.{end}", piece


def _unfused(stem: str, values: Array, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """The Hugging Face modules that one fused module is made of."""
    phi3 = _is_fused(config)
    if stem == "attention.qkv" and not phi3:
        q = config["num_attention_heads"] * config["head_size"]
        kv = config["num_key_value_heads"] * config["head_size"]
        pieces = np.split(values, [q, q + kv])
        yield from ((f"self_attn.{name}_proj", piece) for name, piece in zip("qkv", pieces, strict=True))
    elif stem == "mlp.fc" and phi3:
        up, gate = np.split(values, 2)
        yield "mlp.gate_up_proj", np.concatenate([gate, up])
    elif stem in ("mlp.fc", "mlp.proj") and values.ndim == 3:
        yield from _expert_modules(stem, values, config)
    elif stem == "mlp.shared_expert.fc":
        up, gate = np.split(values, 2)
        yield "mlp.shared_expert.up_proj", up
        yield "mlp.shared_expert.gate_proj", gate
    else:
        mixtral = config["architecture"].startswith("Mixtral")
        names = {
            "attention.qkv": "self_attn.qkv_proj",
            "attention.dense": "self_attn.o_proj",
            "mlp.fc": "mlp.gate_proj",
            "mlp.gate": "mlp.up_proj",
            "mlp.proj": "mlp.down_proj",
            "mlp.router": "block_sparse_moe.gate" if mixtral else "mlp.gate",
            "mlp.shared_expert.proj": "mlp.shared_expert.down_proj",
            "mlp.shared_expert_gate": "mlp.shared_expert_gate",
        }
        yield names[stem], values


def _expert_modules(stem: str, values: Array, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    mixtral = config["architecture"].startswith("Mixtral")
    module, up, gate, down = (
        ("block_sparse_moe", "w3", "w1", "w2") if mixtral else ("mlp", "up_proj", "gate_proj", "down_proj")
    )
    for expert, matrix in enumerate(values):
        prefix = f"{module}.experts.{expert}"
        if stem == "mlp.proj":
            yield f"{prefix}.{down}", matrix
        else:
            first, second = np.split(matrix, 2)
            yield f"{prefix}.{up}", first
            yield f"{prefix}.{gate}", second
