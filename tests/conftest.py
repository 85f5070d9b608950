"""Fixtures shared by all tests: the demo pair that `trtkit demo` prepared, and golden files."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from trtkit.cli.environment import cache_directory

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the commands that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write golden files anew instead of comparing.")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository_root() -> Path:
    return ROOT


@pytest.fixture
def assert_golden(update_golden: bool) -> Callable[[str, Path], None]:
    """Compare a text with a committed file, byte for byte."""

    def compare(text: str, path: Path) -> None:
        if update_golden:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; review it with pytest --update-golden"

    return compare


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_directory()


@pytest.fixture(scope="session")
def demo_pair(cache: Path) -> dict[str, Path]:
    """The folders of the demo target and draft. Tests download nothing: `trtkit demo` has to run before."""
    folders = {
        "target": cache / "checkpoints" / "HuggingFaceTB--SmolLM2-135M-Instruct",
        "draft": cache / "checkpoints" / "trtkit--smollm2-draft",
    }
    if not all((folder / "config.json").is_file() for folder in folders.values()):
        reason = "the demo pair is not prepared: run `trtkit demo` first"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return folders
