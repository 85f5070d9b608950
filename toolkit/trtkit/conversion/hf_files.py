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
    for pattern in _COPIED:
        for file in sorted(source.glob(pattern)):
            if file.is_file() and not (out / file.name).exists():
                shutil.copyfile(file, out / file.name)
