"""What a command shows: its result on stdout (text or JSON), everything else on stderr."""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from trtkit.progress import Progress

R = TypeVar("R")


_PIPE_WIDTH = 200  # a table in a file or a CI log is not cut at 80 columns


class Output(AbstractContextManager["Output"]):
    """One command's voice. `as_json` chooses the form of the result; bars appear only on a terminal."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._stderr = Console(stderr=True, highlight=False)
        self._stdout = Console(highlight=False, soft_wrap=True)
        if not self._stdout.is_terminal:
            self._stdout.width = _PIPE_WIDTH
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._announced: set[str] = set()
        self._is_mid_line = False

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
        if self._is_mid_line:  # an answer broke off: what is said next begins a line
            self.stream("\n")

    def result(self, record: Mapping[str, Any], text: RenderableType) -> None:
        """Print the result: `record` as one JSON document with --json, else `text` (a string or a rich table)."""
        self.close_bars()
        self._is_mid_line = False
        with _named_stdout():
            if self.as_json:
                click.echo(json.dumps(record, indent=2))
            else:
                self._stdout.print(text, markup=False) if isinstance(text, str) else self._stdout.print(text)
            sys.stdout.flush()

    def stream(self, piece: str) -> None:
        """Print a piece of a streamed text at once, without a newline."""
        with _named_stdout():
            click.echo(piece, nl=False)
            sys.stdout.flush()
        self._is_mid_line = not piece.endswith("\n") if piece else self._is_mid_line

    def note(self, text: str) -> None:
        """Say something that is not the result."""
        (self._bars.console if self._bars is not None else self._stderr).print(text, markup=False, soft_wrap=True)

    def progress(self, event: Progress) -> None:
        """Draw an event: a bar on a terminal, one line per stage elsewhere."""
        if not self._stderr.is_terminal:
            if event.stage not in self._announced:
                self._announced.add(event.stage)
                self.note(f"{event.stage} ...")
            return
        bars = self._open_bars()
        if event.stage not in self._tasks:
            self._tasks[event.stage] = bars.add_task(event.stage, total=event.total, unit=event.unit)
        bars.update(self._tasks[event.stage], completed=event.done, total=event.total, unit=event.unit)

    def close_bars(self) -> None:
        """Leave the bars as they stand, so that other text may follow."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

    def _open_bars(self) -> Bars:
        if self._bars is None:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeElapsedColumn(),
                console=self._stderr,
            )
            self._bars.start()
        return self._bars


@contextmanager
def _named_stdout() -> Iterator[None]:
    """A full disk below stdout is an error without a file's name; this gives it one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


def with_output(function: Callable[..., R]) -> Callable[..., R]:
    """Decorator: adds --json and passes an Output as the first argument."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, **kwargs: Any) -> R:
        with Output(as_json) as output:
            return function(output, *args, **kwargs)

    return wrapper
