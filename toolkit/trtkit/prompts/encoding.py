"""Prompts as the text a client sends and the ids a model must see. Knows the checkpoint's tokenizer, no model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jinja2
import transformers

from trtkit.errors import CheckpointError, RequestError
from trtkit.prompts.files import Prompt


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the text a client sends and as the ids the model must see."""

    text: str
    prompt_ids: tuple[int, ...]


class PromptEncoder:
    """The tokenizer of a checkpoint as transformers reads it; runs no code from the checkpoint."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the tokenizer files of a folder. Raises CheckpointError when transformers cannot."""
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise CheckpointError(
                f"transformers cannot load the tokenizer: {error}",
                "check that the folder holds tokenizer.json and tokenizer_config.json",
                code="ORACLE-TOKENIZER",
                where=str(folder),
            ) from error
        return cls(tokenizer)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Render the chat template where there are messages, and tokenize as the checkpoint's tokenizer does.

        Raises RequestError for chat messages without a chat template, or that it refuses, and for a prompt without
        tokens.
        """
        if prompt.text is not None:
            text, prompt_ids = prompt.text, self._tokenizer(prompt.text)["input_ids"]
        else:
            text = self._render_chat(prompt)
            prompt_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if not prompt_ids:
            raise RequestError(f"{prompt.name} has no tokens", "give a prompt that is not empty")
        return EncodedPrompt(text, tuple(prompt_ids))

    def _render_chat(self, prompt: Prompt) -> str:
        if not self._tokenizer.chat_template:
            raise RequestError(
                f"{prompt.name} is a chat, and the tokenizer has no chat template", 'give "text" instead of "messages"'
            )
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise RequestError(
                f"{prompt.name}: the chat template refuses these messages: {error}",
                'give other roles or contents, or "text" instead of "messages"',
            ) from None
