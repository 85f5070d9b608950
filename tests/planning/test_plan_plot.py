"""The picture of a plan is written in a format that exists, or refused by name."""

from pathlib import Path

import pytest
from trtkit.errors import InputError
from trtkit.planning.plan import Plan
from trtkit.planning.plot import write_plot


def test_a_suffix_without_a_format_is_refused(tmp_path: Path) -> None:
    plan = object.__new__(Plan)
    for name in ("plan.foo", "plan"):
        with pytest.raises(InputError, match="no picture has the suffix"):
            write_plot(plan, tmp_path / name)
    assert not list(tmp_path.iterdir())
