"""Every failure a user can cause ends with one message and the documented exit code, never a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trtkit.cli.main import COMMANDS, CONTINUES


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


def test_a_path_that_cannot_be_written_is_exit_2_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["init", "smollm2_spec", "--to", "file/x"], ["init", "smollm2_spec", "--to", "/proc/x"]):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        assert result.stderr.startswith("trtkit: FILE: ") and arguments[-1] in result.stderr


def test_a_full_disk_is_exit_3_and_a_program_error_stays_a_traceback() -> None:
    program = "import sys, errno\nfrom trtkit.cli.main import cli\ndef fail(ctx, name): raise {}\n" + (
        "sys.argv = ['trtkit', 'x']; cli.get_command = fail; cli()"
    )
    results = [
        subprocess.run([sys.executable, "-P", "-c", program.format(error)], capture_output=True, text=True, check=False)
        for error in ("OSError(errno.ENOSPC, 'No space left on device')", "OSError(errno.EBADF, 'Bad descriptor')")
    ]
    assert results[0].returncode == 3
    unnamed = "trtkit: DISK: a file that the system did not name: No space left on device\nFix: free space"
    assert results[0].stderr.startswith(unnamed)
    assert results[1].returncode == 1 and "Traceback" in results[1].stderr


@pytest.mark.parametrize("name", ["smollm2-spec", "smollm2_spec.yaml", "SmolLM2_spec"])
def test_a_preset_that_is_nearly_named_is_offered(name: str, tmp_path: Path) -> None:
    result = run("init", name, cwd=tmp_path)
    assert result.returncode == 2 and "did you mean smollm2_spec?" in result.stderr


def test_the_home_of_a_user_who_is_not_here_is_no_folder(tmp_path: Path) -> None:
    for arguments in (["check", "~nobody-here/x"], ["check", "--json", "~nobody-here/x"]):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 2 and "CHECK-TARGET: ~nobody-here/x does not exist" in result.stderr


@pytest.mark.parametrize("arguments", [["init", "--list"], ["init", "--list", "--json"]])
def test_a_result_that_finds_the_disk_full_says_where_it_went(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "trtkit", *arguments]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 3
    assert result.stderr.startswith("trtkit: DISK: standard output: No space left on device\nFix: free space")


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["init", "smollm2_spec", "--to", "out"], "out/smollm2_spec.yaml"),
        (["export", "vllm", "c.yaml", "--to", "out/serve.sh"], "out/serve.sh"),
    ],
)
def test_a_file_that_the_disk_does_not_take_is_named_and_left_whole_or_absent(
    arguments: list[str], file: str, tmp_path: Path
) -> None:
    """No file may grow beyond 10 bytes: the write fails as on a full disk, and the system names nothing."""
    (tmp_path / "c.yaml").write_text("name: p\ntarget: {checkpoint: t}\n")
    program = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (10, 10))\nfrom trtkit.cli.main import cli; cli()"
    command = [sys.executable, "-P", "-B", "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 3
    assert f"trtkit: DISK: {file}: File too large" in result.stderr
    assert not list((tmp_path / "out").iterdir())


def test_nan_is_no_number_for_any_option(tmp_path: Path) -> None:
    for arguments in (
        ["plan", "c.yaml", "--acceptance", "nan"],
        ["generate", "b", "x", "--temperature", "inf"],
        ["generate", "b", "x", "--timeout", "1e30"],
        ["bench", "b", "--rate", "nan"],
        ["tune", "b", "--budget", "nan"],
        ["parity", "check", "b", "--min-identical", "nan"],
        ["serve", "b", "--follow", "nan"],
        ["serve", "b", "--drain", "-1"],
    ):
        result = run(*arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "is not in the range" in result.stderr, result.stderr


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


@pytest.mark.parametrize(
    ("sent", "exit_code", "how"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("name", ["build", "bench"])
def test_a_signal_ends_a_command_with_its_code_and_what_is_true_for_it(
    name: str, sent: signal.Signals, exit_code: int, how: str
) -> None:
    program = (
        "import sys, time, click; from trtkit.cli.main import cli\n"
        "@cli.command('wait')\n"
        "def wait(): print('ready', flush=True); time.sleep(60)\n"
        "cli.get_command = lambda ctx, name: wait\n"
        f"wait.name = '{name}'; sys.argv = ['trtkit', '{name}']; cli()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == exit_code
    continues = "Fix: run the same command again; it goes on where it stopped\n" if name == "build" else ""
    assert errors == f"\ntrtkit: {how}\n{continues}"


def test_what_is_said_to_continue_is_a_command() -> None:
    assert set(CONTINUES) < set(COMMANDS)
