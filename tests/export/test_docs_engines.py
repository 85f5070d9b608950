"""The commands of docs/engines.md that need no GPU are run, as a reader would run them."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from known_models import fill_cache
from trtkit.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.M | re.S) for line in block.strip().splitlines()
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_cache(tmp_path_factory.mktemp("cache"))


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_succeeds(line: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRTKIT_CACHE", str(cache))
    result = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
