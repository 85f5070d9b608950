"""The `trtkit` group: loads one command's module when it is called, and turns errors into exit codes."""

import importlib
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import click

from trtkit import __version__
from trtkit.artifacts import lacks_room
from trtkit.cli.command_line import remember_command_line
from trtkit.errors import InputError, MissingToolError, TrtkitError

# name -> (module below trtkit.cli, one line of help). The line stands here so that --help imports no command.
COMMANDS = {
    "init": ("init", "Copy a preset to edit."),
    "demo": ("demo", "Prepare the demo pair and print where it is."),
    "check": ("check", "Say what is impossible, and why, before any work."),
    "plan": ("plan", "Predict memory, speed and the best draft length."),
    "calibrate": ("calibrate", "Measure KV and activation scales; report outliers."),
    "convert": ("convert", "Convert one checkpoint to the TensorRT-LLM format."),
    "build": ("build", "Build a deployment from one YAML; resumable."),
    "serve": ("serve", "Start Triton on a build and stop it cleanly."),
    "generate": ("generate", "Stream text from a build or a server."),
    "chat": ("chat", "Talk to a build or a server, turn by turn."),
    "parity": ("parity", "Compare a deployment's tokens with PyTorch's."),
    "bench": ("bench", "Measure latency and acceptance of a deployment."),
    "tune": ("tune", "Find the draft length for each load, and serve by it."),
    "export": ("export", "Write the same deployment for vLLM or transformers."),
    "doctor": ("doctor", "Say what this machine can and cannot do."),
}
# Third-party module -> the extra of trtkit that brings it.
EXTRA_OF = {
    "torch": "reference",
    "transformers": "reference",
    "accelerate": "reference",
    "gguf": "reference",
    "jinja2": "reference",
    "pytriton": "serve",
    "psutil": "serve",
    "matplotlib": "plot",
    "huggingface_hub": "hub",
    "modelopt": "quantize",
}
# What an interruption leaves for the next run; the other commands begin again.
CONTINUES = {
    "demo": "a download from the hub continues",
    "calibrate": "it goes on where it stopped",
    "convert": "it goes on where it stopped",
    "build": "it goes on where it stopped",
    "parity": "a recording goes on where it stopped",
}
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, delivered as an exception so that every `finally` runs."""


class LazyGroup(click.Group):
    """Knows the commands by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the work, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import trtkit.cli.<module> and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"trtkit.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command), f"trtkit.cli.{cmd_name}.command is no click command"
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were given, which reports quote."""
        remember_command_line(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an interruption ends the program with what is true for this command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            _say_interrupted(error, CONTINUES.get(ctx.invoked_subcommand or ""))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of --help, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run, print one message for an expected failure, and exit with its code."""
        kwargs["standalone_mode"] = False
        try:
            signal.signal(signal.SIGTERM, _on_sigterm)
            result = self._run(*args, **kwargs)
            sys.exit(result if isinstance(result, int) else 0)
        except click.exceptions.Exit as error:
            sys.exit(error.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except TrtkitError as error:
            click.echo(f"trtkit: {error}", err=True)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort) as error:
            _say_interrupted(error.__cause__ or error)  # before a command ran; click wraps it in Abort
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _of_the_disk(error) from error


def _missing(error: ModuleNotFoundError) -> TrtkitError | ModuleNotFoundError:
    """The package of an extra that is not installed, with the way to get it; any other error as it is."""
    package = (error.name or "").split(".")[0]
    if package not in EXTRA_OF:
        return error
    return MissingToolError(
        f"this command needs the package {package}", f"pip install 'trtkit[{EXTRA_OF[package]}]'", code="PACKAGE"
    )


def _of_the_disk(error: OSError) -> TrtkitError | OSError:
    """A file that cannot be read or written, or a full disk, as a message; any other error as it is.

    What writes bytes to an open file knows no name: trtkit's own writers add it.
    """
    full = lacks_room(error)
    if error.filename is None and not full:
        return error
    where = "a file that the system did not name" if error.filename is None else str(error.filename)
    cause = error.strerror or str(error)
    if full:
        return MissingToolError(
            cause, "free space on that disk, then run the same command again", code="DISK", where=where
        )
    return InputError(cause, "give a path that you may read and write", code="FILE", where=where)


def _say_interrupted(error: BaseException, continues: str | None = None) -> NoReturn:
    """A line of its own, for the terminal shows ^C before it."""
    by_signal = isinstance(error, Terminated)
    fix = "" if continues is None else f"\nFix: run the same command again; {continues}"
    click.echo(f"\ntrtkit: {'terminated' if by_signal else 'interrupted'}{fix}", err=True)
    sys.exit(EXIT_TERMINATED if by_signal else EXIT_INTERRUPTED)


def _on_sigterm(_: int, __: FrameType | None) -> None:
    raise Terminated


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtkit")
def cli() -> None:
    """Two Hugging Face checkpoints become a verified Triton deployment of TensorRT-LLM.

    Exit codes: 0 fine, 1 a check found a difference, 2 bad input, 3 a tool, a machine or room on
    its disk is missing, 4 the build or server failed, 130 interrupted.
    """
