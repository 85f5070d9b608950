"""The options that choose the prompts of parity, bench and tune. Knows click, reads no prompt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from trtkit.evaluate.oracle.record_choice import PromptChoice

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)
_POSITIVE = click.IntRange(min=1)
_LENGTH = click.option("--max-new-tokens", type=_POSITIVE, help="Length of the answers.")


def prompt_options(default_limit: int | None = None, *, has_length: bool = True) -> Callable[[F], F]:
    """Decorator: adds --prompts, --limit, --group, and --max-new-tokens where answers have a length to choose."""
    options = (
        click.option("--prompts", type=_FILE, help="Text or JSONL file; default: the prompts that trtkit ships."),
        click.option(
            "--limit", type=_POSITIVE, default=default_limit, show_default=True, help="Only the first N prompts."
        ),
        *([_LENGTH] if has_length else []),
        click.option("--group", help="Only the prompts of this class."),
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def taken_choice(options: dict[str, Any]) -> PromptChoice:
    """What these options chose, taken out of a command's options."""
    return PromptChoice(**{key: options.pop(key) for key in PromptChoice.__annotations__ if key in options})
