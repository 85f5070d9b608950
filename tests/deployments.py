"""Deployments for tests of the rules: a small YAML, two shapes of models, two tokenizers; each part may be changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny import tiny_config, write_json
from trtkit.checking.deployment import Deployment, absent_files, resolve_backend
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.pair import compare_tokenizers
from trtkit.checkpoints.tokenizer import read_tokenizer
from trtkit.config.load import parse_config
from trtkit.engines.release import find_release
from trtkit.planning.gpus import find_gpu

BASE: dict[str, Any] = {
    "name": "pair",
    "backend": "engine",
    "tensorrt_llm": "1.2.1",
    "gpu": {"name": "h100-sxm-80gb", "count": 4},
    "target": {"checkpoint": "target"},
    "draft": {"checkpoint": "draft"},
    "speculation": {"kind": "draft_target", "max_draft_len": 5},
    "limits": {"max_batch_size": 8, "max_input_len": 2048, "max_output_len": 1024},
}
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
WORDS = ("<s>", "</s>", "a", "b", "c", "ab", "bc", "abc")


@dataclass(frozen=True)
class Change:
    """What departs from the base: dotted keys of the YAML, keys of the two config.json, parts of the tokenizers.

    target_family and draft_family choose a family of tests/tiny.py. roles are those whose folders are there.
    """

    yaml: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    target_tokenizer: Mapping[str, Any] = field(default_factory=dict)
    draft_tokenizer: Mapping[str, Any] = field(default_factory=dict)
    target_family: str = "llama"
    draft_family: str = "llama"
    roles: tuple[str, ...] = ("target", "draft")


def yaml_document(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base YAML with dotted keys changed; a value of ... removes the key."""
    document: dict[str, Any] = json.loads(json.dumps(BASE))
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        section = document
        for key in path:
            section = section.setdefault(key, {})
        if value is ...:
            del section[last]
        else:
            section[last] = value
    return document


def deployment_of(folder: Path, change: Change) -> Deployment:
    """The deployment, made from files below `folder`."""
    config = parse_config(yaml_document(change.yaml), where="pair.yaml")
    folders = {role: write_model_files(folder, role, change) for role in change.roles if role in config.models}
    specs = {role: read_model_spec(path) for role, path in folders.items()}
    tokenizers = {role: read_tokenizer(path) for role, path in folders.items()}
    both = len(tokenizers) == 2
    return Deployment(
        config=config,
        backend=resolve_backend(config),
        release=find_release(config.tensorrt_llm),
        gpu=find_gpu(config.gpu.name) if config.gpu else None,
        folders=folders,
        specs=specs,
        tokenizers=tokenizers,
        pair=compare_tokenizers(tokenizers["draft"], tokenizers["target"]) if both else None,
        stored=dict.fromkeys(specs, "none"),
        absent_files=absent_files(config),
    )


def write_model_files(folder: Path, role: str, change: Change) -> Path:
    """config.json and tokenizer of one role, without weights."""
    path = folder / role
    path.mkdir(parents=True, exist_ok=True)
    is_target = role == "target"
    shape = {**(LLAMA_70B if is_target else LLAMA_1B), **(change.target if is_target else change.draft)}
    family = change.target_family if is_target else change.draft_family
    write_json(path / "config.json", tiny_config(family, "bfloat16", **shape))
    write_tokenizer(path, change.target_tokenizer if is_target else change.draft_tokenizer)
    return path


def write_tokenizer(folder: Path, parts: Mapping[str, Any]) -> Path:
    """A BPE tokenizer.json of eight pieces. parts: words, merges, special, normalizer, byte_fallback, settings."""
    words = parts.get("words", WORDS)
    special = parts.get("special", {0: "<s>", 1: "</s>"})
    vocab = words if isinstance(words, dict) else {word: number for number, word in enumerate(words)}
    document = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, "special": True} for number, text in special.items()],
        "normalizer": parts.get("normalizer"),
        "pre_tokenizer": None,
        "post_processor": parts.get("post_processor"),
        "model": {
            "type": "BPE",
            "byte_fallback": parts.get("byte_fallback", False),
            "vocab": vocab,
            "merges": parts.get("merges", ["a b", "b c", "a bc"]),
        },
    }
    write_json(folder / "tokenizer.json", document)
    write_json(folder / "tokenizer_config.json", parts.get("settings", {"bos_token": "<s>"}))
    return folder
