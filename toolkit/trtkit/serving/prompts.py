"""A request's text_input to token ids: plain text, or messages in the tokenizer's chat template. Knows no tensors."""

import datetime
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from trtkit.serving.chat_template import ChatTemplate, messages_of
from trtkit.serving.text import TextTokenizer


def utc_now() -> datetime.datetime:
    """The clock of templates that print a date."""
    return datetime.datetime.now(datetime.UTC)


class Prompts:
    """One tokenizer folder. add_special_tokens is for plain text: a chat template writes its own special tokens."""

    def __init__(
        self,
        folder: Path,
        tokenizer: TextTokenizer,
        *,
        add_special_tokens: bool,
        now: Callable[[], datetime.datetime] = utc_now,
    ) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._add_special_tokens = add_special_tokens
        self._now = now

    def text(self, text_input: str, *, is_chat: bool) -> str:
        """What the model is shown. Raises what ChatTemplate and messages_of raise."""
        return self._template.render(messages_of(text_input), self._now()) if is_chat else text_input

    def encode(self, text: str, *, is_chat: bool) -> list[int]:
        """Token ids of what `text` returned."""
        return self._tokenizer.encode(text, add_special_tokens=self._add_special_tokens and not is_chat)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate.load(self._folder)
