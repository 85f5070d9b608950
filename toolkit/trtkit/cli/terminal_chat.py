"""The loop of `trtkit chat`: lines in, answers out, and the commands that begin with a slash. Knows no transport."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TextIO

from trtkit.cli.output import Output
from trtkit.client.session import ChatSession, Turn
from trtkit.errors import TrtkitError

HELP = "/stats shows figures, /new forgets the history, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def questions(source: TextIO, output: Output) -> Iterator[str]:
    """Lines that are not empty: typed at a prompt with history and editing, or read from a pipe.

    Ctrl-C at the prompt gives up the line.
    """
    if not source.isatty():
        yield from (line.strip() for line in source if line.strip())
        return
    import readline  # noqa: F401 (its import alone gives input() editing and history)

    output.note(HELP)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt as interrupt:
            if type(interrupt) is not KeyboardInterrupt:
                raise
            output.note("")
            continue
        if line:
            yield line


def converse(output: Output, session: ChatSession, lines: Iterator[str], *, is_interactive: bool) -> None:
    """Answer line by line; with --json one document at the end.

    A turn that fails ends a piped session with its error; an interactive one shows it and goes on.
    """
    for line in lines:
        if line in ("/exit", "/quit"):
            break
        if line.startswith("/"):
            _obey(output, session, line)
            continue
        try:
            _show(output, session.say(line, (lambda _: None) if output.as_json else output.stream))
        except TrtkitError as error:
            if not is_interactive:
                raise
            output.note(str(error))
    if output.as_json:
        output.result(document_of(session), "")


def document_of(session: ChatSession) -> dict[str, Any]:
    """The document of --json."""
    return {
        "schema": "trtkit.chat/1",
        "turns": [_turn(turn) for turn in session.turns],
        "statistics": session.statistics(),
    }


def statistics_text(session: ChatSession) -> str:
    """What /stats shows: one figure a line."""
    return "\n".join(
        f"{name.replace('_', ' '):22}{'-' if value is None else f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in session.statistics().items()
    )


def _obey(output: Output, session: ChatSession, line: str) -> None:
    if line == "/stats":
        output.note(statistics_text(session))
    elif line == "/new":
        session.restart()
        output.note("the history is forgotten")
    else:
        output.note(HELP)


def _show(output: Output, turn: Turn) -> None:
    if not output.as_json:
        output.stream("\n")
    if turn.was_stopped:
        output.note("(stopped)")


def _turn(turn: Turn) -> dict[str, Any]:
    completion = turn.completion
    figures = {} if completion is None else asdict(completion.figures)
    return {"question": turn.question, "text": turn.text, "stopped": turn.was_stopped, "figures": figures}
