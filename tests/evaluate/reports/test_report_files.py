"""Where reports go: what takes none is known before anything is measured, and nothing is left there."""

from collections.abc import Callable
from pathlib import Path

import pytest
from trtkit.errors import BuildError
from trtkit.evaluate.bench.run import BenchOptions, bench_deployment
from trtkit.evaluate.endpoints.deployment import Target
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.parity.run import CheckOptions, check_parity
from trtkit.evaluate.reports.files import refuse_unwritable
from trtkit.evaluate.tune.run import TuneOptions, tune_deployment

NOBODY = Target("nobody", address="127.0.0.1:1")
CHOICE = PromptChoice(limit=1)


def test_a_folder_that_can_be_made_is_not_made(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_this_place_is_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse_unwritable(Path("bench"))
    (tmp_path / "bench").write_text("")
    with pytest.raises(BuildError, match="cannot write bench"):
        refuse_unwritable(Path("bench"))


@pytest.mark.parametrize(
    "measure",
    [
        lambda out: check_parity(NOBODY, CheckOptions(CHOICE, out=out)),
        lambda out: bench_deployment(NOBODY, BenchOptions(CHOICE, draft_lens=(1,), out=out)),
        lambda out: tune_deployment(NOBODY, TuneOptions(CHOICE, draft_lens=(1,), concurrencies=(1,), out=out)),
    ],
    ids=["check", "bench", "tune"],
)
def test_nothing_is_measured_for_reports_that_cannot_be_written(
    measure: Callable[[Path], object], tmp_path: Path
) -> None:
    """Nobody answers there: had it asked, it would be a ServerError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="Not a directory"):
        measure(tmp_path / "file" / "out")
