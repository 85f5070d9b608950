"""Finding: one thing a check noticed. Knows the record and its order, not the rules that produce it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from trtkit.errors import InputError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """`code` is stable, `where` is "file:key", `fix` is what the user does next."""

    code: str
    severity: Severity
    where: str
    cause: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """The record of the `--json` contract."""
        return asdict(self)


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that make a deployment impossible."""
    return [finding for finding in findings if finding.severity == "error"]


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Raise one InputError that lists every finding of severity error, or return when there is none."""
    errors = errors_of(findings)
    if not errors:
        return
    if len(errors) == 1:
        only = errors[0]
        raise InputError(only.cause, only.fix, code=only.code, where=only.where)
    lines = "\n".join(f"  {e.code}: {e.where}: {e.cause}\n    fix: {e.fix}" for e in errors)
    raise InputError(f"{len(errors)} things make this deployment impossible:\n{lines}", "mend each of them")
