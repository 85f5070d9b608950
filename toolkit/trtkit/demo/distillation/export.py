"""A trained draft as the files that trtkit ships. Knows their names, and the shapes of the student."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE
from trtkit.demo.distillation.student import (
    HEAD_DIM,
    HIDDEN,
    INNER,
    NORM_EPS,
    NUM_KV,
    NUM_Q,
    ROPE_BASE,
    Student,
    huggingface_layers,
)
from trtkit.demo.draft import ROWS

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": NUM_Q,
    "num_key_value_heads": NUM_KV,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": NORM_EPS,
    "rope_parameters": {"rope_theta": ROPE_BASE, "rope_type": "default"},
    "tie_word_embeddings": True,
    "unk_token_id": 0,
    "use_cache": True,
}


def export(student: Student, vocab_size: int, out: Path) -> None:
    """Write config.json, draft_vocabulary.json and layers.safetensors (bfloat16)."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = huggingface_layers(student) | {ROWS: student.rows.detach().to(torch.bfloat16).contiguous()}
    save_file(tensors, out / "layers.safetensors", metadata={"format": "pt"})
    config = _CONFIG | {"num_hidden_layers": len(student.layers), "vocab_size": vocab_size}
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    vocabulary = {"token_ids": student.vocabulary.tolist()}
    (out / DRAFT_VOCABULARY_FILE).write_text(json.dumps(vocabulary) + "\n", encoding="utf-8")
