"""The reading order in docs/reference.md leads through the whole engine."""

from pathlib import Path

import trtkit.reference

DOCS = Path(__file__).parents[2] / "docs" / "reference.md"


def test_every_file_of_the_engine_has_its_place_in_the_reading_order() -> None:
    table = DOCS.read_text(encoding="utf-8").split("## Read it top-down")[1].split("##")[0]
    files = Path(trtkit.reference.__path__[0]).rglob("*.py")
    assert sorted(file.name for file in files if file.name != "__init__.py" and f"{file.name}`" not in table) == []
