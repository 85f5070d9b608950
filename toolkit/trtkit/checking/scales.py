"""The audit of KV cache scales: absent, incomplete, invalid, constant or calibrated. Knows no format of checkpoint."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from trtkit.checkpoints.stored_tensor import StoredTensor

LAYER_NUMBER = r"(0|[1-9][0-9]{0,8})"
"""A layer's number in a tensor's name, as a group of a pattern."""

_READABLE = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
Verdict = Literal["absent", "incomplete", "invalid", "constant", "calibrated"]


@dataclass(frozen=True)
class ScaleAudit:
    """The verdict over one model's scales, and the figures behind it.

    missing and invalid name layers. num_ones counts layers with a scale of exactly 1.0; some of them among others above
    it are the mark of exports that clamped scales to at least 1.0 (ModelOpt's for TensorRT-LLM; its one for Hugging
    Face did before March 2026). are_powers_of_two: all of them, as `trtkit calibrate` chooses them: such scales may be
    equal without being a constant cast, unless they are 1.0. smallest, median and largest are over the valid scales,
    None without any.
    """

    verdict: Verdict
    missing: tuple[int, ...]
    invalid: tuple[int, ...]
    num_ones: int
    are_powers_of_two: bool
    smallest: float | None
    median: float | None
    largest: float | None

    @property
    def clamped(self) -> bool:
        """Whether the scales look clamped: some exactly 1.0, none below, not all equal, nor all powers of two."""
        return self.num_ones > 0 and self.smallest == 1.0 and self.largest != 1.0 and not self.are_powers_of_two


def read_scales(tensors: Iterable[StoredTensor], pattern: re.Pattern[str]) -> dict[int, tuple[float, ...]]:
    """The values of the tensors whose name matches; the pattern's first group is the layer."""
    scales: dict[int, tuple[float, ...]] = {}
    for tensor in tensors:
        match = pattern.search(tensor.name)
        if match is not None and tensor.dtype in _READABLE:
            layer = int(match.group(1))
            scales[layer] = (*scales.get(layer, ()), *_values(tensor))
    return scales


def audit_scales(scales: Mapping[int, Sequence[float]], num_layers: int) -> ScaleAudit:
    """Judge the scales of layers 0 .. num_layers - 1; a layer may have several: keys', values', and a shared one."""
    missing = tuple(layer for layer in range(num_layers) if not scales.get(layer))
    invalid = tuple(layer for layer in sorted(scales) if any(not is_scale(value) for value in scales[layer]))
    valid = sorted(value for values in scales.values() for value in values if is_scale(value))
    return ScaleAudit(
        verdict=_verdict(missing, invalid, valid, num_layers),
        missing=missing,
        invalid=invalid,
        num_ones=sum(1.0 in values for values in scales.values()),
        are_powers_of_two=_are_powers_of_two(valid),
        smallest=valid[0] if valid else None,
        median=median(valid) if valid else None,
        largest=valid[-1] if valid else None,
    )


def _verdict(missing: tuple[int, ...], invalid: tuple[int, ...], valid: list[float], num_layers: int) -> Verdict:
    if len(missing) == num_layers:
        return "absent"
    if invalid:
        return "invalid"
    if missing:
        return "incomplete"
    # One layer alone is equal to itself, whoever measured it.
    is_chosen = valid[0] != 1.0 and (num_layers == 1 or _are_powers_of_two(valid))
    return "constant" if valid[0] == valid[-1] and not is_chosen else "calibrated"


def _are_powers_of_two(scales: Iterable[float]) -> bool:
    return all(math.frexp(scale)[0] == 0.5 for scale in scales)


def _values(tensor: StoredTensor) -> tuple[float, ...]:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        data = file.read(tensor.num_bytes)
    if tensor.dtype == "bfloat16":
        widened = np.frombuffer(data, dtype="<u2").astype("<u4") << 16
        return tuple(float(value) for value in widened.view("<f4"))
    return tuple(float(value) for value in np.frombuffer(data, dtype=_READABLE[tensor.dtype]))


def is_scale(value: float) -> bool:
    """Whether a number can be one: finite and positive."""
    return math.isfinite(value) and value > 0
