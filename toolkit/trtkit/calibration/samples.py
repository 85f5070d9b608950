"""Samples: calibration texts as token ids of bounded length, chosen by seed. Knows the tokenizer, runs no model."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from jinja2 import TemplateError

from trtkit.calibration.excerpt import excerpt
from trtkit.calibration.texts import CalibrationText
from trtkit.errors import CheckpointError, InputError

MIN_TOKENS = 128
_MIN_PIECE = 8
_HELD_OUT_PART = 8
_MAX_UNKNOWN_SHARE = 0.2
# A template is foreign code: it refuses what it does not know by raising, or fails like any program.
_TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True)
class Sample:
    """A piece of a text as token ids; `name` says which."""

    name: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class SampleOptions:
    """How many pieces, of how many tokens at most; the seed decides which and in what order."""

    samples: int = 256
    max_len: int = 512
    seed: int = 0

    def within(self, max_seq_len: int) -> "SampleOptions":
        """The same, cut where the model's positions end: beyond, it has none (GPT-2) or was not trained."""
        return replace(self, max_len=min(self.max_len, max_seq_len))


def make_samples(
    texts: Sequence[CalibrationText], checkpoint: Path, vocab_size: int, options: SampleOptions
) -> list[Sample]:
    """Tokenize (an excerpt of very much text), cut into pieces of max_len, shuffle by seed, take the first `samples`.

    Raises InputError CALIB-EMPTY and CALIB-TINY for too little text, CALIB-TOKENIZER when the ids or the text do not
    belong to this checkpoint's tokenizer; CheckpointError when the tokenizer cannot be loaded.
    """
    tokenizer = _Tokenizer(checkpoint)
    drawn = excerpt(texts, options.samples * options.max_len, options.seed)
    pieces = [piece for text in drawn for piece in _pieces(text, tokenizer.encode(text), options.max_len)]
    _refuse_foreign(pieces, vocab_size, tokenizer)
    random.Random(options.seed).shuffle(pieces)
    chosen = pieces[: options.samples]
    tokens = sum(len(piece.token_ids) for piece in chosen)
    if tokens < MIN_TOKENS:
        raise InputError(
            f"the calibration set has {tokens} tokens in {len(chosen)} samples",
            f"give at least {MIN_TOKENS} tokens, better 10,000 and more; max_len and samples limit them too",
            code="CALIB-TINY" if chosen else "CALIB-EMPTY",
        )
    return chosen


def hold_out(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """(to measure on, kept apart): an eighth is kept apart to judge on, none when there are fewer than eight.

    A sample that occurs twice is on one of the two sides.
    """
    distinct = list({sample.token_ids: sample for sample in samples}.values())
    kept = distinct[len(distinct) - len(distinct) // _HELD_OUT_PART :]
    apart = {sample.token_ids for sample in kept}
    return [sample for sample in samples if sample.token_ids not in apart], kept


def _pieces(text: CalibrationText, ids: Sequence[int], max_len: int) -> Iterable[Sample]:
    """Pieces of max_len; a rest of a few tokens is dropped, unless it is all there is."""
    for number, start in enumerate(range(0, len(ids), max_len)):
        piece = tuple(ids[start : start + max_len])
        if len(piece) >= min(_MIN_PIECE, max_len) or not number:
            yield Sample(f"{text.name}#{number}" if number else text.name, piece)


class _Tokenizer:
    """The checkpoint's tokenizer as transformers reads it; loaded when the first text needs it."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._loaded: Any = None

    def encode(self, text: CalibrationText) -> Sequence[int]:
        """The ids: as given, of the rendered chat, or of the text with the tokenizer's special tokens."""
        if text.token_ids is not None:
            return text.token_ids
        tokenizer = self._load()
        if text.text is not None:
            return list(tokenizer(text.text)["input_ids"])
        return self._chat(text)

    def _chat(self, text: CalibrationText) -> list[int]:
        """The rendered chat; without a template the turns as plain lines, which serves to measure just as well."""
        tokenizer = self._loaded
        if not tokenizer.chat_template:
            lines = "\n".join(f"{role}: {content}" for role, content in text.messages)
            return list(tokenizer(lines)["input_ids"])
        messages = [{"role": role, "content": content} for role, content in text.messages]
        try:
            rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        except _TEMPLATE_FAILURES as error:
            raise InputError(
                f"the tokenizer's chat template refuses {text.name}: {type(error).__name__} {str(error)[:200]!r}",
                "give messages that this model's template takes (some know no system role), or their text",
                code="CALIB-TEXT",
                where=str(self._checkpoint),
            ) from None
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])

    @property
    def unknown_id(self) -> int | None:
        """The id of unknown pieces, None when the tokenizer has none or was not needed."""
        return None if self._loaded is None else self._loaded.unk_token_id

    def _load(self) -> Any:
        if self._loaded is None:
            try:
                auto: Any = transformers.AutoTokenizer
                self._loaded = auto.from_pretrained(self._checkpoint, local_files_only=True, trust_remote_code=False)
            except (OSError, ValueError, KeyError, ImportError) as error:
                raise CheckpointError(
                    f"transformers cannot load the tokenizer: {(str(error) or type(error).__name__).splitlines()[0]}",
                    "check that the folder holds tokenizer.json and tokenizer_config.json",
                    code="CALIB-TOKENIZER",
                    where=str(self._checkpoint),
                ) from error
            # Long texts are cut here, so the tokenizer's warning about its own limit says nothing.
            self._loaded.model_max_length = int(1e30)
        return self._loaded


def _refuse_foreign(pieces: Sequence[Sample], vocab_size: int, tokenizer: _Tokenizer) -> None:
    for piece in pieces:
        worst = next((token_id for token_id in piece.token_ids if not 0 <= token_id < vocab_size), None)
        if worst is not None:
            raise _foreign(f"{piece.name} holds the token id {worst}, and the vocabulary is 0 to {vocab_size - 1}")
    unknown = tokenizer.unknown_id
    total = sum(len(piece.token_ids) for piece in pieces)
    count = sum(piece.token_ids.count(unknown) for piece in pieces) if unknown is not None else 0
    if total and count > total * _MAX_UNKNOWN_SHARE:
        raise _foreign(f"{count} of {total} tokens are unknown to this tokenizer")


def _foreign(cause: str) -> InputError:
    return InputError(
        cause,
        "calibrate with text, or with token ids made by the tokenizer of this checkpoint",
        code="CALIB-TOKENIZER",
    )
