"""Findings that come as errors, raised by the readers of files: their record, and the way from the error to it."""

from dataclasses import dataclass

from trtkit.errors import TrtkitError
from trtkit.findings import Finding, Severity


@dataclass(frozen=True)
class RaisedFinding:
    """A code that a reader raises: what it looks at, when, and an example of its sentence."""

    code: str
    looks_at: str
    when: str
    example: str
    source: str
    severity: Severity = "error"


def finding_of(error: TrtkitError, where: str) -> Finding:
    """The finding for an error that reading a file raised; `where` is used when the error names no file."""
    return Finding(error.code or "UNREADABLE", "error", error.where or where, error.cause, error.fix)
