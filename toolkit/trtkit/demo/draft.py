"""The shipped draft as a Hugging Face checkpoint. Knows its files, and that most of its embedding is the target's."""

import shutil
from pathlib import Path

from trtkit.artifacts import key_of, sha256_of
from trtkit.checkpoints.draft_vocabulary import DRAFT_VOCABULARY_FILE, read_draft_vocabulary
from trtkit.errors import CheckpointError

_SHIPPED = Path(__file__).with_name("draft")
# The embedding of the tokens that the draft may propose; the other tokens keep the target's.
ROWS = "vocabulary_rows"
_EMBEDDING = "model.embed_tokens.weight"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def shipped_digest() -> str:
    """Changes when trtkit ships another draft."""
    return key_of({path.name: sha256_of(path) for path in sorted(_SHIPPED.iterdir())})


def write_draft(target: Path, out: Path) -> None:
    """Join the shipped layers and rows (bfloat16) with the target's embedding, which is also the tied head.

    target: folder with model.safetensors, the demo target. Raises CheckpointError when its embedding has another
    shape or dtype than the draft needs.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = load_file(_SHIPPED / "layers.safetensors")
    with safe_open(target / "model.safetensors", framework="pt") as file:
        embedding = file.get_tensor(_EMBEDDING)
    norm = tensors["model.norm.weight"]
    shape = tuple(embedding.shape)
    if shape[1:] != tuple(norm.shape) or embedding.dtype != norm.dtype:
        raise CheckpointError(
            f"{_EMBEDDING} is {embedding.dtype} {shape}, the draft needs {norm.dtype} [*, {len(norm)}]",
            "run `trtkit demo --force` to prepare the demo target again",
            code="DEMO-DRAFT",
            where=str(target / "model.safetensors"),
        )
    vocabulary = read_draft_vocabulary(_SHIPPED, len(embedding))
    embedding[list(vocabulary or ())] = tensors.pop(ROWS)
    save_file({_EMBEDDING: embedding, **tensors}, out / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", DRAFT_VOCABULARY_FILE):
        shutil.copyfile(_SHIPPED / name, out / name)
    for name in _TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, out / name)
