"""The voice of a command: what is said after a text that broke off begins a line of its own."""

import pytest
from trtkit.cli.output import Output
from trtkit.errors import ServerError
from trtkit.progress import Progress


@pytest.mark.parametrize(
    ("pieces", "shown"), [(["a", "b", ""], "ab\n"), (["a\n"], "a\n"), (["a", "\n", ""], "a\n"), ([], "")]
)
def test_an_answer_that_breaks_off_leaves_no_open_line(
    pieces: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ServerError), Output(as_json=False) as output:
        for piece in pieces:
            output.stream(piece)
        raise ServerError("the server is gone", "start it again")
    assert capsys.readouterr().out == shown


def test_a_result_ends_the_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(as_json=False) as output:
        output.stream("a")
        output.result({}, "")
    assert capsys.readouterr().out == "a\n"


def test_a_bar_says_what_is_under_way_now(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Output(as_json=False) as output:
        output.progress(Progress("load", 0, 2, "models (first)"))
        output.progress(Progress("load", 1, 2, "models (second)"))
        output.close_bars()
    drawn = capsys.readouterr().err
    assert drawn.rindex("models (second)") > drawn.rindex("models (first)")
