"""Expected failures: what went wrong, what to do, which exit code. Knows nothing of where they are raised."""


class TrtkitError(Exception):
    """Base of every expected failure; the command line turns it into an exit code.

    `code` is the stable name of the finding (docs/findings.md), `where` the file, and key, it speaks of.
    """

    exit_code = 4

    def __init__(self, cause: str, fix: str, *, code: str | None = None, where: str | None = None) -> None:
        prefix = "".join(f"{part}: " for part in (code, where) if part)
        super().__init__(f"{prefix}{cause}\nFix: {fix}")
        self.cause = cause
        self.fix = fix
        self.code = code
        self.where = where


class DifferenceError(TrtkitError):
    """A check ran to its end and found a difference (parity, a bench baseline)."""

    exit_code = 1


class InputError(TrtkitError):
    """The request cannot be carried out as written."""

    exit_code = 2


class ConfigError(InputError):
    """The YAML, or a --set, is not a build config."""


class CheckpointError(InputError):
    """A checkpoint folder is missing, damaged, or of a kind trtkit does not read."""


class RequestError(InputError):
    """One generation request is impossible; other requests are unaffected."""


class MissingToolError(TrtkitError):
    """This machine lacks a program, a package, a device or room on its disk that the command needs."""

    exit_code = 3


class BuildError(TrtkitError):
    """A stage of the build failed."""


class ServerError(TrtkitError):
    """The server did not start, died, or answered with an error."""
