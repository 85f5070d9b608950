"""The audit of KV cache scales: absent, incomplete, invalid, constant or calibrated. Pure; reads no file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["absent", "incomplete", "invalid", "constant", "calibrated"]


@dataclass(frozen=True)
class ScaleAudit:
    """The verdict over one model's scales, and the figures behind it.

    missing and invalid name layers. clamped counts scales of exactly 1.0 among others above it: the mark of exports
    that clamped scales to at least 1.0 (ModelOpt before March 2026). smallest, median and largest are over the valid
    scales, None without any.
    """

    verdict: Verdict
    missing: tuple[int, ...]
    invalid: tuple[int, ...]
    num_ones: int
    smallest: float | None
    median: float | None
    largest: float | None

    @property
    def clamped(self) -> bool:
        """Whether the scales look clamped: some exactly 1.0, none below, not all equal."""
        return self.num_ones > 0 and self.smallest == 1.0 and self.largest != 1.0


def audit_scales(scales: Mapping[int, Sequence[float]], num_layers: int) -> ScaleAudit:
    """Judge the scales of layers 0 .. num_layers - 1; a layer may have several (keys and values apart)."""
    missing = tuple(layer for layer in range(num_layers) if not scales.get(layer))
    invalid = tuple(layer for layer in sorted(scales) if any(not _is_scale(value) for value in scales[layer]))
    valid = sorted(value for values in scales.values() for value in values if _is_scale(value))
    return ScaleAudit(
        verdict=_verdict(missing, invalid, valid, num_layers),
        missing=missing,
        invalid=invalid,
        num_ones=sum(value == 1.0 for value in valid),
        smallest=valid[0] if valid else None,
        median=valid[len(valid) // 2] if valid else None,
        largest=valid[-1] if valid else None,
    )


def _verdict(missing: tuple[int, ...], invalid: tuple[int, ...], valid: list[float], num_layers: int) -> Verdict:
    if len(missing) == num_layers:
        return "absent"
    if invalid:
        return "invalid"
    if missing:
        return "incomplete"
    return "constant" if valid[0] == valid[-1] else "calibrated"


def _is_scale(value: float) -> bool:
    return math.isfinite(value) and value > 0
