"""Draws a page in a real browser. Knows no page."""

import shutil
import subprocess
from pathlib import Path

import pytest


def assert_a_browser_draws(html: str, folder: Path) -> None:
    """The page is drawn, asks for nothing and complains of nothing; skips where there is no chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    page, picture = folder / "page.html", folder / "page.png"
    page.write_text(html, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND"]  # a page that asks for anything complains
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1200,1600", f"--screenshot={picture}"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000  # an empty page is smaller
