"""trtkit holds its own demo to the committed baseline: parity, bench and every report of both, from a real server."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "tests" / "baselines" / "smollm2_spec.json"
# How the baseline was made; --update-baseline makes it again.
BENCH = ("--limit", "4", "--requests", "4", "--rounds", "1", "--max-new-tokens", "24", "--draft-len", "2", "--oracle")

pytestmark = [pytest.mark.demo, pytest.mark.tritonserver, pytest.mark.timeout(1800)]


def trtkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "trtkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.fixture(scope="module")
def build(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("self") / "smollm2"
    done = trtkit("build", "build_configs/smollm2_spec.yaml", "--out", str(out))
    assert done.returncode == 0, done.stderr
    with TritonServer(out, options=ServerOptions(num_threads=1)):
        yield out


@pytest.fixture(scope="module")
def parity(build: Path) -> dict[str, Any]:
    done = trtkit("parity", "check", str(build), "--limit", "3", "--max-new-tokens", "16", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def bench(build: Path) -> dict[str, Any]:
    done = trtkit("bench", str(build), *BENCH, "--baseline", str(BASELINE), "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_demo_answers_what_its_checkpoint_answers(parity: dict[str, Any]) -> None:
    assert parity["different"] == 0 and parity["diagnosis"] == []
    assert {case["draft_len"] for prompt in parity["prompts"] for case in prompt["cases"]} > {0, 1}


def test_the_demo_keeps_the_committed_ratios(bench: dict[str, Any]) -> None:
    assert bench["baseline"]["num_compared"] >= 2
    assert bench["baseline"]["regressions"] == []
    assert [run["mode"] for run in bench["runs"]] == ["oracle", "target", "speculative"]


def test_the_baseline_holds_ratios_and_no_times() -> None:
    runs = json.loads(BASELINE.read_text(encoding="utf-8"))["runs"]
    measures = {measure for run in runs.values() for measure in run}
    assert measures <= {"speedup", "over_transformers", "acceptance_rate", "mean_acceptance_length"}
    assert "acceptance_rate" in measures


def test_both_leave_every_report(build: Path, parity: dict[str, Any], bench: dict[str, Any]) -> None:
    for folder, command in ((build / "parity", f"parity check {build} "), (build / "bench", f"bench {build} ")):
        assert json.loads((folder / "report.json").read_text())["command"].startswith(f"trtkit {command}")
        assert ElementTree.parse(folder / "junit.xml").getroot().findall("testsuite/testcase")
        assert "Again: `trtkit " in (folder / "summary.md").read_text()
        assert (folder / "report.html").is_file()


@pytest.mark.parametrize("folder", ["parity", "bench"])
def test_a_browser_without_network_draws_the_reports(
    folder: str, build: Path, parity: dict[str, Any], bench: dict[str, Any], tmp_path: Path
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    picture = tmp_path / "page.png"
    # Every host name resolves to nothing, so a page that asks for anything complains on its console.
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1200,2400", f"--screenshot={picture}", (build / folder / "report.html").as_uri()]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    assert picture.stat().st_size > 20_000  # an empty page is smaller
