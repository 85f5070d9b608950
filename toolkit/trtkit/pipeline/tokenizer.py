"""The tokenizer files that travel with a deployment. Knows their names, not their contents."""

import shutil
from pathlib import Path

from trtkit.errors import CheckpointError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "tokenizer.model",
)


def copy_tokenizer(source: Path, out: Path) -> None:
    """Copy what the server needs to tokenise. Raises CheckpointError when there is no tokenizer.json."""
    if not (source / "tokenizer.json").is_file():
        raise CheckpointError(
            "the target has no tokenizer.json",
            "save a fast tokenizer into the folder (AutoTokenizer.from_pretrained(...).save_pretrained(...))",
            code="TOKENIZER-MISSING",
            where=str(source),
        )
    for name in tokenizer_files(source):
        shutil.copyfile(source / name, out / name)


def tokenizer_files(source: Path) -> tuple[str, ...]:
    """The names of the files that travel."""
    return tuple(name for name in TOKENIZER_FILES if (source / name).is_file())
