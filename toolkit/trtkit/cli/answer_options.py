"""The options of every command that asks for an answer. Knows click, no request."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from trtkit.cli.finite_range import FiniteRange

F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = FiniteRange(min=0, min_open=True)
_AT_MOST_A_YEAR = FiniteRange(0, 365 * 24 * 3600, min_open=True)  # longer times overflow in gRPC and sockets

_OPTIONS = (
    click.option("--temperature", type=FiniteRange(min=0), default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=click.IntRange(min=0), default=0, help="Sample among the K likeliest; 0 is all."),
    click.option("--top-p", type=FiniteRange(0, 1, min_open=True), help="Sample within this probability mass."),
    click.option("--seed", type=click.IntRange(min=0), help="Repeats a sampled answer."),
    click.option("--repetition-penalty", type=_POSITIVE, help="Above 1: fewer repetitions."),
    click.option("--draft-len", "num_draft_tokens", type=click.IntRange(min=0), help="Drafts per step; 0 is off."),
    click.option("--timeout", "deadline_s", type=_AT_MOST_A_YEAR, help="Seconds for the answer."),
)


def answer_options(default_max_tokens: int) -> Callable[[F], F]:
    """Decorator: adds --max-tokens and the options above, under the names of GenerateRequest's fields."""

    def decorate(function: F) -> F:
        for option in reversed(_OPTIONS):
            function = option(function)
        kind = click.IntRange(min=1)
        longest = click.option(
            "--max-tokens", type=kind, default=default_max_tokens, show_default=True, help="Length of the answer."
        )
        return longest(function)

    return decorate
