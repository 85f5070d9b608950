"""A finished build of a tiny random pair, made by the pipeline, for tests that compare it with the oracle."""

from pathlib import Path
from typing import Any

from tiny import tiny_checkpoint
from trtkit.builds import Build, open_build
from trtkit.config.load import parse_config
from trtkit.pipeline.run import BuildOptions, build

MAX_DRAFT_LEN = 3
MAX_INPUT_LEN = 160


def deployed_tiny(folder: Path, *, draft_seed: int | None = None, **target: Any) -> Build:
    """Build a float32 Llama pair below `folder`; `target` are keys of the target's config.json.

    The draft has the target's weights, so that every draft is accepted, unless it gets a seed of its own.
    """
    tiny_checkpoint(folder / "target", tokenizer=True, **target)
    seed = {} if draft_seed is None else {"seed": draft_seed}
    tiny_checkpoint(folder / "draft", tokenizer=True, **{**target, **seed})
    document = {
        "name": "tiny",
        "backend": "reference",
        "target": {"checkpoint": str(folder / "target"), "dtype": "float32"},
        "draft": {"checkpoint": str(folder / "draft"), "dtype": "float32"},
        "speculation": {"kind": "draft_target", "max_draft_len": MAX_DRAFT_LEN},
        "limits": {"max_batch_size": 4, "max_input_len": MAX_INPUT_LEN, "max_output_len": 32},
        "verification": {"max_new_tokens": 12},
    }
    config = parse_config(document, where="tiny.yaml")
    build(config, BuildOptions(cache=folder / "cache", where="tiny.yaml", out=folder / "build"))
    return open_build(folder / "build")
