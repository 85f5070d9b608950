"""Tiny random Llamas for the tests of the reference engine: a transformers model and the same weights in TensorRT-LLM's
checkpoint format. Written from the format's description, independently of the converter and of the loader."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def tiny_model(seed: int = 0, model_type: str = "llama", **changes: Any) -> PreTrainedModel:
    """A random float32 model whose logits are spread out enough to give varied text."""
    config = AutoConfig.for_model(model_type, **{**SHAPE, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(std=0.15 if "embed" not in name else 1.0)
    return model.eval()


def write_checkpoint(model: PreTrainedModel, folder: Path, *, dtype: str = "float32", tp: int = 1, pp: int = 1) -> Path:
    """Write config.json and one file per rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(model, dtype=dtype, tp=tp, pp=pp)))
    for rank in range(tp * pp):
        tensors = rank_tensors(model, tp_rank=rank % tp, tp=tp, pp_rank=rank // tp, pp=pp)
        cast = {name: tensor.to(getattr(torch, dtype)).contiguous().clone() for name, tensor in tensors.items()}
        save_file(cast, folder / f"rank{rank}.safetensors")
    return folder


def edit_checkpoint(folder: Path, **changes: Any) -> Path:
    """Change keys of config.json; a value of None removes the key."""
    path = folder / "config.json"
    document = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return folder


def edit_tensors(folder: Path, **changes: Tensor | None) -> Path:
    """Replace or add tensors of rank 0, by names with dots written as double underscores; None removes one."""
    path = folder / "rank0.safetensors"
    tensors = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return folder


def checkpoint_config(model: PreTrainedModel, *, dtype: str = "float32", tp: int = 1, pp: int = 1) -> dict[str, Any]:
    config = model.config
    rope = dict(config.rope_parameters)
    base = rope.pop("rope_theta")
    return {
        "architecture": config.architectures[0] if config.architectures else type(model).__name__,
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "norm_epsilon": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": base,
        "rotary_scaling": rope if rope.get("rope_type", "default") != "default" else None,
        "attn_bias": bool(getattr(config, "attention_bias", config.model_type == "qwen2")),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
    }


def rank_tensors(model: PreTrainedModel, *, tp_rank: int, tp: int, pp_rank: int, pp: int) -> dict[str, Tensor]:
    """What one rank's file holds."""
    state = model.state_dict()
    layers = torch.tensor_split(torch.arange(model.config.num_hidden_layers), pp)[pp_rank].tolist()
    tensors: dict[str, Tensor] = {}
    for local, layer in enumerate(layers):
        ours = f"transformer.layers.{local}."
        tensors.update({ours + name: tensor for name, tensor in layer_tensors(model, layer, tp_rank, tp).items()})
    if pp_rank == 0:
        tensors["transformer.vocab_embedding.weight"] = state["model.embed_tokens.weight"]
    if pp_rank == pp - 1:
        tensors["transformer.ln_f.weight"] = state["model.norm.weight"]
        head = state["lm_head.weight"]
        padding = head.new_zeros(-len(head) % tp, head.shape[1])
        tensors["lm_head.weight"] = torch.cat([head, padding]).chunk(tp)[tp_rank]
    return tensors


def layer_tensors(model: PreTrainedModel, layer: int, tp_rank: int, tp: int) -> dict[str, Tensor]:
    state = {
        name.removeprefix(f"model.layers.{layer}."): tensor
        for name, tensor in model.state_dict().items()
        if name.startswith(f"model.layers.{layer}.")
    }
    tensors = {
        "input_layernorm.weight": state["input_layernorm.weight"],
        "post_layernorm.weight": state["post_attention_layernorm.weight"],
        "attention.dense.weight": state["self_attn.o_proj.weight"].chunk(tp, dim=1)[tp_rank],
        "mlp.proj.weight": state["mlp.down_proj.weight"].chunk(tp, dim=1)[tp_rank],
    }
    for kind in ("weight", "bias"):
        if f"self_attn.q_proj.{kind}" in state:
            tensors[f"attention.qkv.{kind}"] = qkv_of_rank(model, state, kind, tp_rank, tp)
        for theirs, ours in (("gate_proj", "mlp.fc"), ("up_proj", "mlp.gate")):
            if f"mlp.{theirs}.{kind}" in state:
                tensors[f"{ours}.{kind}"] = state[f"mlp.{theirs}.{kind}"].chunk(tp)[tp_rank]
    for theirs, ours in (
        ("self_attn.o_proj.bias", "attention.dense.bias"),
        ("mlp.down_proj.bias", "mlp.proj.bias"),
        ("self_attn.q_norm.weight", "attention.q_layernorm.weight"),
        ("self_attn.k_norm.weight", "attention.k_layernorm.weight"),
    ):
        if theirs in state:
            tensors[ours] = state[theirs]
    return tensors


def qkv_of_rank(model: PreTrainedModel, state: dict[str, Tensor], kind: str, tp_rank: int, tp: int) -> Tensor:
    """[Q_r ; K_r ; V_r]; key heads are repeated when there are more ranks than key heads."""
    num_kv_heads = model.config.num_key_value_heads
    parts = [state[f"self_attn.q_proj.{kind}"].chunk(tp)[tp_rank]]
    for name in ("k_proj", "v_proj"):
        heads = state[f"self_attn.{name}.{kind}"].chunk(num_kv_heads)
        repeated = [head for head in heads for _ in range(max(tp // num_kv_heads, 1))]
        per_rank = len(repeated) // tp
        parts.extend(repeated[tp_rank * per_rank : (tp_rank + 1) * per_rank])
    return torch.cat(parts)
