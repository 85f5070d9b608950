"""CheckReport: what was checked, what was found, and whether that is acceptable. Knows no rule and no file."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trtkit.errors import InputError
from trtkit.findings import Finding

SCHEMA = "trtkit.check/1"
_RANKS = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class CheckReport:
    """kind names what TARGET was ("YAML", "engine", ...); ignored are the findings that --ignore took out."""

    kind: str
    findings: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    strict: bool

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way: no errors, and no warnings when strict."""
        bad = {"error", "warning"} if self.strict else {"error"}
        return not any(finding.severity in bad for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The record of the `--json` contract."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "target": self.kind,
            "findings": [finding.as_dict() for finding in self.findings],
            "ignored": [finding.as_dict() for finding in self.ignored],
        }


def make_report(
    kind: str, findings: Iterable[Finding], *, strict: bool, ignore: Sequence[str], known: Iterable[str]
) -> CheckReport:
    """Sort the findings and take out the ignored codes. Raises what refuse_unknown_codes raises."""
    refuse_unknown_codes(ignore, known)
    ordered = in_order(findings)
    return CheckReport(
        kind=kind,
        findings=tuple(finding for finding in ordered if finding.code not in ignore),
        ignored=tuple(finding for finding in ordered if finding.code in ignore),
        strict=strict,
    )


def refuse_unknown_codes(ignore: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError CHECK-IGNORE when `ignore` names a code that is not among `known`.

    A typo would hide nothing, unnoticed.
    """
    unknown = sorted(set(ignore) - (names := set(known)))
    if unknown:
        near = difflib.get_close_matches(unknown[0].upper(), sorted(names), n=1)
        raise InputError(
            f"--ignore {unknown[0]}: no finding has this code",
            (f"did you mean {near[0]}? " if near else "") + "docs/findings.md lists the codes",
            code="CHECK-IGNORE",
        )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; within each in the order found, without repetition."""
    return sorted(dict.fromkeys(findings), key=lambda finding: _RANKS[finding.severity])
