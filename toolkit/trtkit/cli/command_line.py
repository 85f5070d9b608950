"""The command line as it was given, for reports that quote it."""

import shlex
from collections.abc import Sequence

import click

_ARGUMENTS = "trtkit.arguments"


def remember_command_line(ctx: click.Context, arguments: Sequence[str]) -> None:
    """Keep what the group was called with, before it is parsed: a process that calls it has arguments of its own."""
    ctx.meta[_ARGUMENTS] = tuple(arguments)


def command_line() -> str:
    """`trtkit` and the arguments of the running command, quoted for a shell."""
    return shlex.join(["trtkit", *click.get_current_context().meta[_ARGUMENTS]])
