"""A self-contained HTML page: no script, no font, no image from elsewhere. Knows HTML, nothing of what it shows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;background:#fff;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top;
border-bottom:1px solid #e4e8ee}th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code{font:13px/1.4 ui-monospace,monospace;background:#f3f5f8;padding:.1rem .3rem;overflow-wrap:anywhere}
.identical{color:#1a7f4b}.near-tie{color:#9a6a00}.different{color:#b3261e;font-weight:600}.muted{color:#5b6775}
figure{margin:0}svg{display:block;max-width:100%}
"""
COLORS = {"identical": "#2f9e66", "near-tie": "#e0a526", "different": "#c8372d"}


def page(title: str, sections: Iterable[str]) -> str:
    """The whole document; `sections` are pieces of HTML made by the functions below."""
    body = "\n".join(sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """A heading of level 1 or 2."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, style: str = "") -> str:
    """Plain text; `style` is a verdict or "muted"."""
    return f'<p class="{escape(style)}">{escape(text)}</p>'


def code(text: str) -> str:
    """A command or a formula on a line of its own."""
    return f"<p><code>{escape(text)}</code></p>"


@dataclass(frozen=True)
class Cell:
    """One cell: text, or a drawing made by `bar` when `drawing` is set. is_number aligns to the right."""

    text: str
    style: str = ""
    is_number: bool = False
    drawing: str = ""


def table(head: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> str:
    """A table; text is escaped."""
    lines = ["<table>", f"<thead><tr>{''.join(_cell(cell, 'th') for cell in head)}</tr></thead>", "<tbody>"]
    lines += [f"<tr>{''.join(_cell(cell, 'td') for cell in row)}</tr>" for row in rows]
    return "\n".join([*lines, "</tbody>", "</table>"])


@dataclass(frozen=True)
class Part:
    """A stretch of a bar: how long, in the unit of the bar's full length, and its colour."""

    length: float
    color: str


def bar(parts: Sequence[Part], full: float, label: str, width: int = 240) -> str:
    """A horizontal bar of consecutive parts as inline SVG; `full` is the length that fills the width."""
    pixels, start = [], 0.0
    for part in parts:
        size = width * part.length / full if full else 0.0
        pixels.append(f'<rect x="{start:.1f}" y="2" width="{size:.1f}" height="10" fill="{escape(part.color)}"/>')
        start += size
    return (
        f'<svg width="{width}" height="14" viewBox="0 0 {width} 14" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(pixels)}</svg>"
    )


def left_out(skipped: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The prompts that were not asked, and why; nothing where all were."""
    if skipped:
        yield heading("Left out")
        rows = ([Cell(entry["name"]), Cell(entry["reason"])] for entry in skipped)
        yield table([Cell("prompt"), Cell("why")], rows)


def ending(document: Mapping[str, Any]) -> Iterator[str]:
    """How to make the page again, and with which versions it was made."""
    yield heading("Again")
    yield code(document["command"])
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    yield paragraph(f"{document['schema']}; {versions}", "muted")


def _cell(cell: Cell, tag: str) -> str:
    names = " ".join(name for name in (cell.style, "n" if cell.is_number else "") if name)
    attribute = f' class="{escape(names)}"' if names else ""
    return f"<{tag}{attribute}>{cell.drawing}{escape(cell.text)}</{tag}>"
