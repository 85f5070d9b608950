"""A finished build of a tiny random pair, made by the pipeline, for tests that compare it with the oracle."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny import SEED, tensor_shapes, tiny_checkpoint, tiny_config, tiny_tensor, write_weights
from trtkit.builds import Build, open_build
from trtkit.config.load import parse_config
from trtkit.pipeline.run import BuildOptions, build

MAX_DRAFT_LEN = 3
MAX_INPUT_LEN = 160


Tensors = dict[str, torch.Tensor]


TILES = {"hidden_size": 128, "intermediate_size": 256}  # the smallest that integer kernels take


def deployed_tiny(
    folder: Path,
    *,
    dtype: str = "float32",
    kv_dtype: str = "auto",
    quantization: str = "none",
    seed: int = SEED,
    **sections: Any,
) -> Build:
    """Build a Llama pair below `folder` from float32 checkpoints with random weights of this seed.

    The draft has the target's weights, so that every draft is accepted; quantization is the target's alone. `sections`
    are keys of the YAML.
    """
    sizes = {} if quantization == "none" else TILES
    for role in ("target", "draft"):
        source = tiny_checkpoint(folder / role, tokenizer=True, **sizes)
        shapes = tensor_shapes("llama", tiny_config("llama", **sizes))
        write_weights(source, {name: tiny_tensor(name, shape, seed) for name, shape in shapes}, "float32")
    document = {
        "name": "tiny",
        "backend": "reference",
        "target": {"checkpoint": str(folder / "target"), "dtype": dtype, "quantization": quantization},
        "draft": {"checkpoint": str(folder / "draft"), "dtype": dtype},
        "speculation": {"kind": "draft_target", "max_draft_len": MAX_DRAFT_LEN},
        "kv_cache": {"dtype": kv_dtype},
        "calibration": {"samples": 8, "max_len": 64},
        "limits": {"max_batch_size": 4, "max_input_len": MAX_INPUT_LEN, "max_output_len": 32},
        "verification": {"max_new_tokens": 12},
        **sections,
    }
    config = parse_config(document, where="tiny.yaml")
    # Caches that the engine has and the checks do not allow yet are built all the same.
    ignore = ("REFERENCE-LIMIT",) if kv_dtype != "auto" else ()
    build(config, BuildOptions(cache=folder / "cache", where="tiny.yaml", out=folder / "build", ignore=ignore))
    return open_build(folder / "build")


def copy_of(build: Build, folder: Path) -> Build:
    """A second build, its record included, to plant a fault into."""
    shutil.copytree(build.folder, folder, ignore=shutil.ignore_patterns("launch", "logs"))
    return open_build(folder)


def change_weights(build: Build, role: str, change: Callable[[Tensors], None]) -> None:
    """Change tensors of a converted checkpoint in place."""
    path = build.checkpoint(role) / "rank0.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def drop_last_layer(build: Build, role: str, num_layers: int) -> None:
    """A converted checkpoint of num_layers layers without its last one, by all its files."""

    def drop(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"transformer.layers.{num_layers - 1}.")]:
            del tensors[name]

    change_weights(build, role, drop)
    change_checkpoint(build, role, num_hidden_layers=num_layers - 1)
    (build.checkpoint(role) / "conversion.json").unlink(missing_ok=True)


def change_checkpoint(build: Build, role: str, **values: Any) -> None:
    """Change keys of a converted checkpoint's config.json."""
    path = build.checkpoint(role) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
