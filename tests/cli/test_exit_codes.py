"""Every failure a user can cause ends with one message and the documented exit code, never a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "trtkit", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["build", "none.yaml"], 2, "none.yaml does not exist"),
        (["build"], 2, "Missing argument"),
        (["biuld"], 2, "No such command"),
        (["init", "nothing"], 2, "choose one of"),
        (["serve", "nowhere"], 2, "nowhere"),
        (["--nonsense"], 2, "No such option"),
    ],
)
def test_bad_input_is_exit_2_with_a_message(tmp_path: Path, arguments: list[str], exit_code: int, says: str) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == exit_code, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_key_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: p\ntarget: {checkpoint: t}\nlimit: {}\n")
    result = run("build", "p.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "limit: unknown key, did you mean limits?" in result.stderr


def test_help_takes_under_a_third_of_a_second_of_cpu() -> None:
    before = os.times()
    assert run("--help").returncode == 0
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 0.3


def test_a_package_that_is_not_installed_is_named_with_its_extra() -> None:
    program = "import sys; sys.modules['torch'] = None\nfrom trtkit.cli.main import cli\n" + (
        "sys.argv = ['trtkit', 'x']; cli.get_command = lambda ctx, name: __import__('torch'); cli()"
    )
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert (
        result.stderr == "trtkit: PACKAGE: this command needs the package torch\nFix: pip install 'trtkit[reference]'\n"
    )


@pytest.mark.parametrize(("sent", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_one_line_and_its_code(sent: signal.Signals, exit_code: int) -> None:
    program = (
        "import sys, time, click; from trtkit.cli.main import cli\n"
        "@cli.command('wait')\n"
        "def wait(): print('ready', flush=True); time.sleep(60)\n"
        "cli.get_command = lambda ctx, name: wait\n"
        "sys.argv = ['trtkit', 'wait']; cli()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == exit_code
    assert "run the same command again" in errors and "Traceback" not in errors
