"""The files beside the weights of a Hugging Face checkpoint: which of them travel with a converted one. No weights."""

import shutil
from pathlib import Path

_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
    "vocab.json",
    "merges.txt",
)


def copy_hf_files(source: Path, out: Path) -> None:
    """Copy configuration and tokenizer; what stands in `out` already stays."""
    for name in hf_files(source):
        if not (out / name).exists():
            shutil.copyfile(source / name, out / name)


def hf_files(source: Path) -> tuple[str, ...]:
    """The names of the files that travel."""
    found = {file.name for pattern in _COPIED for file in source.glob(pattern) if file.is_file()}
    return tuple(sorted(found))
