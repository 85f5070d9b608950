"""What a tokenizer's files say: ids, special tokens, merges, normaliser. Reads JSON only; tokenizes nothing."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.errors import CheckpointError

TOKENIZER_FILE = "tokenizer.json"
_MERGES = b'"merges"'
_MERGES_KEY = re.compile(_MERGES + rb"\s*:\s*(?=\[)")
# What would follow the array if the object went on; a merge that reads like it only costs the shortcut.
_NEXT_KEY = re.compile(rb'\]\s*,\s*"[^"]*"\s*:')
_TAIL_BYTES = 256
_DOCUMENT_END = re.compile(rb"\]\s*\}\s*\}\s*\Z")


@dataclass(frozen=True)
class TokenizerSpec:
    """One tokenizer.json, with the settings of tokenizer_config.json beside it.

    pieces maps every piece, added tokens included, to its id. special holds the ids of added tokens that mark
    structure and are no text. merges_text is the ordered list of merges as JSON, empty for models without merges; it
    is most of a large file, and parsed only when two of them differ. scores holds the Unigram scores in order of id.
    segmentation holds the parts that decide how text is cut besides the vocabulary: normaliser, pre-tokenizer.
    """

    path: Path
    kind: str
    pieces: Mapping[str, int]
    special: frozenset[int]
    merges_text: bytes
    scores: Sequence[float]
    byte_fallback: bool
    segmentation: Mapping[str, Any]
    chat_template: str | None
    bos_token: str | None
    adds_bos: bool

    @cached_property
    def pieces_by_id(self) -> dict[int, str]:
        """id -> piece; the added token wins where a file gives one id two pieces."""
        return {token_id: piece for piece, token_id in self.pieces.items()}

    @property
    def max_id(self) -> int:
        """The largest id that encoding can produce; -1 for an empty vocabulary."""
        return max(self.pieces.values(), default=-1)

    @cached_property
    def merges_flat(self) -> bytes:
        """The parts of all merges in order, as the file spells them; equal ones are equal rules, without parsing."""
        # JSON has no raw control characters, so they can stand for what is escaped.
        unescaped = self.merges_text.replace(rb"\\", b"\0").replace(rb"\"", b"\1")
        return b" ".join(unescaped.split(b'"')[1::2])

    @cached_property
    def merge_rules(self) -> list[str]:
        """The merges in one spelling: "left right". The file has them so, or as pairs."""
        merges = json.loads(self.merges_text) if self.merges_text else []
        return [rule if isinstance(rule, str) else " ".join(rule) for rule in merges]


def read_tokenizer(folder: Path) -> TokenizerSpec:
    """Read the tokenizer of a checkpoint folder.

    Raises CheckpointError TOK-MISSING without a tokenizer.json, TOK-UNREADABLE when it is not one.
    """
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise CheckpointError(*_missing(folder), code="TOK-MISSING", where=str(path))
    try:
        rest, merges_text = split_merges(path.read_bytes())
        return _parse(path, json.loads(rest), merges_text, _settings(folder))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"not a tokenizer.json: {type(error).__name__} {error}",
            "fetch the file again, or write it anew with transformers: AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...)",
            code="TOK-UNREADABLE",
            where=str(path),
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot be read: {error.strerror}", "make the file readable", code="TOK-UNREADABLE", where=str(path)
        ) from None


def split_merges(data: bytes) -> tuple[bytes, bytes]:
    """tokenizer.json without its merges, and the JSON of the merges; the whole file and nothing when it has none.

    The tokenizers library writes merges as the last key of the last object; a file of another shape is left whole,
    and its merges are found again after parsing.
    """
    # The last one: a piece of the vocabulary that reads like the key comes before it.
    key = _MERGES_KEY.match(data, max(0, data.rfind(_MERGES)))
    end = _DOCUMENT_END.search(data, max(0, len(data) - _TAIL_BYTES))
    if key is None or end is None or end.start() < key.end():
        return data, b""
    start, stop = key.end(), end.start() + 1
    if _NEXT_KEY.search(data, start, stop):
        return data, b""
    return data[:start] + b"[]" + data[stop:], data[start:stop]


def _missing(folder: Path) -> tuple[str, str]:
    slow = next((name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()), None)
    program = next((path.name for path in sorted(folder.glob("tokenization*.py"))), None)
    if slow is None and program is None:
        return "the folder has no tokenizer", "copy the tokenizer files of the same model into it"
    trusted = ", trust_remote_code=True" if program else ""
    convert = f"AutoTokenizer.from_pretrained(folder{trusted}).save_pretrained(folder)"
    if program is not None:
        return (
            f"the tokenizer is a program ({program}), which is not run, and serving needs the fast form",
            f"use a revision that has a tokenizer.json, or, if you trust the program, write one: {convert} and the"
            " packages that it imports; not every such tokenizer has a fast form",
        )
    return f"only {slow} is there, and serving needs the fast form", f"write it with transformers: {convert}"


def _settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the template of chat_template.jinja where that file holds it; {} without one."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = template.read_text(encoding="utf-8")
    return dict(settings)


def _parse(path: Path, document: dict[str, Any], merges_text: bytes, settings: dict[str, Any]) -> TokenizerSpec:
    model, added = document["model"], document.get("added_tokens") or []
    pieces, scores = _vocabulary(model["vocab"])
    pieces.update({token["content"]: token["id"] for token in added})
    return TokenizerSpec(
        path=path,
        kind=model.get("type") or ("BPE" if "merges" in model else "Unigram"),
        pieces=pieces,
        special=frozenset(token["id"] for token in added if token.get("special", False)),
        merges_text=merges_text or (json.dumps(model["merges"]).encode() if model.get("merges") else b""),
        scores=scores,
        byte_fallback=bool(model.get("byte_fallback", False)),
        segmentation={"normalizer": document.get("normalizer"), "pre_tokenizer": document.get("pre_tokenizer")},
        chat_template=_template(settings.get("chat_template")),
        bos_token=_content(settings.get("bos_token")),
        adds_bos=bool(settings.get("add_bos_token", False)) or _postprocessor_adds(document, settings),
    )


def _vocabulary(vocab: Any) -> tuple[dict[str, int], tuple[float, ...]]:
    """pieces and scores: BPE and WordPiece give {piece: id}, Unigram a list of [piece, score] in order of id."""
    if isinstance(vocab, dict):
        return vocab, ()
    return {piece: token_id for token_id, (piece, _) in enumerate(vocab)}, tuple(score for _, score in vocab)


def _template(template: Any) -> str | None:
    """The chat template; a list of named templates is reduced to its default one."""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template if isinstance(template, str) else None


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _postprocessor_adds(document: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether the post-processor puts the BOS token before every text."""
    bos = _content(settings.get("bos_token"))
    processor = document.get("post_processor")
    return bool(bos and processor and bos in json.dumps(processor, ensure_ascii=False))
