"""docs/conversion.md lists every code that checkpoints/ and conversion/ raise or report, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIX = r"(?:CKPT|CONV|DISK|OUT)-[A-Z0-9]+(?:-[A-Z0-9]+)*"
# Raised by the parts of checkpoints/ that a conversion does not use.
ELSEWHERE = {"CKPT-FOLDER", "CKPT-DEMO", "CKPT-EOS"}


def test_codes_in_the_source_and_on_the_page_are_the_same() -> None:
    packages = (ROOT / "toolkit" / "trtkit" / name for name in ("checkpoints", "conversion"))
    sources = "".join(path.read_text() for package in packages for path in package.glob("*.py"))
    used = set(re.findall(f'"({PREFIX})"', sources)) - ELSEWHERE
    page = (ROOT / "docs" / "conversion.md").read_text(encoding="utf-8")
    assert set(re.findall(PREFIX, page)) == used
