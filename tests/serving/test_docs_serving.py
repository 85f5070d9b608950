"""docs/serving.md: its codes are raised somewhere. tests/server runs its examples."""

import re
from pathlib import Path

import pytest


@pytest.fixture
def page(repository_root: Path) -> Path:
    return repository_root / "docs" / "serving.md"


def test_every_code_in_the_page_is_raised_in_the_source(page: Path, repository_root: Path) -> None:
    codes = set(re.findall(r"`((?:[A-Z]+-[A-Z]+)|DEADLINE)`", page.read_text()))
    source = "".join(path.read_text() for path in (repository_root / "toolkit" / "trtkit").rglob("*.py"))
    assert len(codes) > 8
    assert not {code for code in codes if f'code="{code}"' not in source}
