"""A rule: when it holds against something, what it says, where that is known from. Knows no rule in particular."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from trtkit.findings import Finding, Severity

S = TypeVar("S")
LooksAt = Literal["YAML", "checkpoint", "pair", "TensorRT-LLM checkpoint", "engine", "repository", "build", "machine"]


@dataclass(frozen=True)
class Hit:
    """One place where a rule holds: the key (or file) it speaks of, and the values its sentences need."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)


def hit(key: str, /, **values: object) -> Hit:
    """Shorthand for the rules."""
    return Hit(key, values)


@dataclass(frozen=True)
class Rule(Generic[S]):
    """One row of the table of findings.

    when says the condition in words for the documentation; find yields a Hit for each place where it holds. cause
    and fix are templates for the values of the Hit; example holds values that fill them for the documentation.
    source says where the fact is known from.
    """

    code: str
    severity: Severity
    looks_at: LooksAt
    when: str
    cause: str
    fix: str
    source: str
    find: Callable[[S], Iterable[Hit]]
    example: Hit

    def finding(self, found: Hit, where: str) -> Finding:
        """The sentence for one Hit; `where` is the file that the key is in."""
        place = f"{where}:{found.key}" if found.key else where
        return Finding(
            self.code, self.severity, place, self.cause.format(**found.values), self.fix.format(**found.values)
        )


def run_rules(rules: Sequence[Rule[S]], subject: S, where: str) -> list[Finding]:
    """Every finding of every rule, in the order of the table."""
    return [rule.finding(found, where) for rule in rules for found in rule.find(subject)]
