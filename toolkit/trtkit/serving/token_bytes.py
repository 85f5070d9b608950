"""Token ids to the exact bytes they stand for. Knows the decoders of Hugging Face tokenizers, no streams."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.errors import CheckpointError

_SPACE_MARK = "\u2581"  # SentencePiece writes a space as this
_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


@dataclass(frozen=True)
class TokenBytes:
    """How one tokenizer's tokens become bytes; `table` is indexed by token id and None means "no such token".

    starts_with_space says that the text's first space belongs to the tokenizer (SentencePiece puts one before every
    text) and is dropped.
    """

    table: tuple[bytes | None, ...]
    special_ids: frozenset[int]
    starts_with_space: bool

    def of(self, token_id: int, *, skip_special: bool) -> bytes:
        """The bytes of one token; none for ids outside the vocabulary, as padded models have them."""
        if skip_special and token_id in self.special_ids:
            return b""
        return (self.table[token_id] if 0 <= token_id < len(self.table) else None) or b""


def read_token_bytes(document: Mapping[str, Any], tokens: Mapping[str, int], where: str) -> TokenBytes:
    """The table of a tokenizer.json `document` whose whole vocabulary is `tokens`.

    Raises CheckpointError for a decoder that is neither byte-level nor SentencePiece-like.
    """
    steps = _decoder_steps(document.get("decoder"))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        to_bytes: Callable[[str], bytes] = _byte_level
    elif kinds & {"Metaspace", "ByteFallback", "Replace"} and not kinds & {"WordPiece", "BPEDecoder", "CTC"}:
        to_bytes = _piece
    else:
        raise CheckpointError(
            f"its decoder {sorted(kinds)} is not supported for streaming text",
            "use a tokenizer with a byte-level or SentencePiece-like decoder",
            code="TOKENIZER-DECODER",
            where=where,
        )
    table: list[bytes | None] = [None] * (max(tokens.values(), default=-1) + 1)
    for token, token_id in tokens.items():
        table[token_id] = to_bytes(token)
    special = (added["id"] for added in document.get("added_tokens", ()) if added["special"])
    return TokenBytes(tuple(table), frozenset(special), any(_strips_first_space(step) for step in steps))


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _strips_first_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
        return bool(scheme != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _piece(token: str) -> bytes:
    """SentencePiece: a mark for the space, and <0xNN> for a byte that has no piece."""
    if match := _BYTE_PIECE.match(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()


def _byte_level(token: str) -> bytes:
    """GPT-2: every byte is written as one printable character; added tokens are plain text."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_of_character() -> dict[str, int]:
    """Printable Latin-1 stands for itself; the other bytes are numbered from U+0100 on (GPT-2's encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
