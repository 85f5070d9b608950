"""The voice of a command: what is said after a text that broke off begins a line of its own."""

import pytest
from trtkit.cli.output import Output
from trtkit.errors import ServerError


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
