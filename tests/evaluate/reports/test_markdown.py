"""Markdown of reports, read by a real parser: what a user named a prompt is text, and stays in its cell."""

import pytest
from markdown_it import MarkdownIt
from trtkit.evaluate.reports.markdown import code_span, markdown_table

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "a|b",
    "a\\|b",
    "ends with a backslash\\",
    "`code` and ``more",
    "*strong* _soft_ __both__ ~~gone~~",
    "![seen](http://example.org/x.png) [link](http://example.org)",
    "<img src=x onerror=alert(1)> &amp; &lt;",
    "# no heading",
    "two\nlines\r\nof\u2028it",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_shows_what_it_was_given(text: str) -> None:
    tokens = READER.parse("\n".join(markdown_table(("name", "value"), [(text, 1)])))
    cells = [token for token in tokens if token.type == "inline"]
    assert [cell.content for cell in cells[:2]] == ["name", "value"] and len(cells) == 4
    kinds = {child.type for child in cells[2].children or ()}
    shown = "".join(child.content for child in cells[2].children or ())
    assert kinds <= {"text", "text_special"} and shown == " ".join(text.splitlines())


@pytest.mark.parametrize("text", ["a b", "`", "a `` b", "trtkit parity check 'it``s'"])
def test_code_is_shown_whatever_backticks_it_has(text: str) -> None:
    (inline,) = (token for token in READER.parse(f"Again: {code_span(text)}") if token.type == "inline")
    assert [child.content for child in inline.children or () if child.type == "code_inline"] == [text]
