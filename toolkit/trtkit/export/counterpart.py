"""Counterpart: what another runtime is told, and what it cannot be told. Knows the record, no runtime."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Counterpart:
    """text is a command or a script; notes name every value of the YAML that the runtime has no word for."""

    runtime: str
    text: str
    notes: tuple[str, ...]
