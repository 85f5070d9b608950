"""Tables and code in Markdown, for the summary page of a CI job. Knows no document."""

import re
from collections.abc import Iterable, Mapping, Sequence

_MARKUP = re.compile(r"[\\`*_\[\]>|~&#]")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table; what a cell says stays in it, and is no markup."""
    cells = ([_cell(str(value)) for value in row] for row in rows)
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in cells)]


def left_out_table(skipped: Sequence[Mapping[str, str]]) -> list[str]:
    """The prompts that were not asked, and why; no line where all were."""
    if not skipped:
        return []
    return [*markdown_table(("left out", "why"), ((entry["name"], entry["reason"]) for entry in skipped)), ""]


def code_span(text: str) -> str:
    """Text as code, whatever backticks it has."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}"


def _cell(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.splitlines())).replace("<", "&lt;")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
