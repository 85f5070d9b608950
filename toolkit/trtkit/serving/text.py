"""Text to token ids and token ids to text, whole or as they come. Knows the tokenizer's files, no requests."""

import codecs
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtkit.errors import CheckpointError
from trtkit.serving.token_bytes import TokenBytes, read_token_bytes


class TextStream:
    """Token ids in, text out, in any grouping: the pieces joined are the whole text.

    A character is held back until all its bytes are there, so U+FFFD appears only where the tokens are no UTF-8.
    """

    def __init__(self, token_bytes: TokenBytes, *, skip_special: bool) -> None:
        self._token_bytes = token_bytes
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = token_bytes.starts_with_space

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        data = b"".join(self._token_bytes.of(token_id, skip_special=self._skip_special) for token_id in token_ids)
        if data and self._drops_space:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was held back, when no token follows."""
        return self._decoder.decode(b"", final=True)


class TextTokenizer:
    """One tokenizer folder. Encoding puts exactly one BOS in front when the tokenizer is meant to have one."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes, *, bos_id: int | None, adds_bos: bool) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self._bos_id = bos_id
        self._adds_bos = adds_bos

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        """Read tokenizer.json and tokenizer_config.json. Raises CheckpointError when they are missing or unusable."""
        path = folder / "tokenizer.json"
        document = _read_json(path)
        config = _read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
        try:
            tokenizer = Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # noqa: BLE001 (tokenizers raises nothing narrower)
            raise _unusable(path, str(error)) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        bos = config.get("bos_token")
        bos_text = bos["content"] if isinstance(bos, dict) else bos
        return cls(
            tokenizer,
            read_token_bytes(document, tokenizer.get_vocab(with_added_tokens=True), str(path)),
            bos_id=tokenizer.token_to_id(bos_text) if bos_text else None,
            adds_bos=config.get("add_bos_token") is True,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        A prompt that already begins with BOS (a rendered chat template does) does not get a second one.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if self._bos_id is None or not add_special_tokens:
            return ids
        if ids[:2] == [self._bos_id, self._bos_id]:
            return ids[1:]
        return [self._bos_id, *ids] if self._adds_bos and ids[:1] != [self._bos_id] else ids

    @functools.cached_property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text than this."""
        return max((len(data) for data in self._token_bytes.table if data), default=1)

    def encode_word(self, word: str) -> list[list[int]]:
        """The ways a stop or bad word may appear in an answer: as it stands and after a space; never with BOS."""
        spellings = dict.fromkeys(tuple(self.encode(text, add_special_tokens=False)) for text in (word, f" {word}"))
        return [list(ids) for ids in spellings if ids]

    def stream(self, *, skip_special_tokens: bool) -> TextStream:
        """A decoder for one answer."""
        return TextStream(self._token_bytes, skip_special=skip_special_tokens)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The whole text of an answer; the same function of the tokens as the stream."""
        stream = self.stream(skip_special_tokens=skip_special_tokens)
        return stream.push(token_ids) + stream.finish()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from None
    if not isinstance(document, dict):
        raise _unusable(path, "not a JSON object")
    return document


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"cannot be used: {reason}",
        "give a folder with a fast tokenizer (tokenizer.json); run trtkit build again",
        code="TOKENIZER-FILE",
        where=str(path),
    )
