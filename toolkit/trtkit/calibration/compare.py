"""Two sets of KV scales side by side, layer by layer, and the audit's verdict over one of them. Measures nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.calibration.number_formats import Format
from trtkit.checking.scales import ScaleAudit, is_scale
from trtkit.checking.subjects.hf_checkpoint import read_hf_checkpoint
from trtkit.checking.subjects.trtllm_checkpoint import read_trtllm_checkpoint
from trtkit.checkpoints.json_fields import read_json_fields
from trtkit.errors import CheckpointError, InputError


@dataclass(frozen=True)
class ScaleDifference:
    """One layer: its scale here and there (None where a side has none), the larger one of keys' and values'."""

    layer: int
    here: float | None
    there: float | None

    @property
    def factor(self) -> float | None:
        """there / here: 2 means that there half the codes stay unused, 0.5 that values beyond half saturate. None where
        a side has none, or one that is no scale: zero, negative, infinite or NaN.
        """
        if self.here is None or self.there is None or not (is_scale(self.here) and is_scale(self.there)):
            return None
        return self.there / self.here


@dataclass(frozen=True)
class Comparison:
    """Scales (here) against those of a checkpoint (there)."""

    folder: Path
    audit: ScaleAudit
    differences: tuple[ScaleDifference, ...]

    @property
    def verdict(self) -> str:
        """absent, incomplete, invalid, constant, clamped or calibrated."""
        return "clamped" if self.audit.verdict == "calibrated" and self.audit.clamped else self.audit.verdict

    def as_dict(self) -> dict[str, Any]:
        """The record of the `--json` contract; a scale that is infinite or NaN, which JSON cannot say, is null."""
        rows = [
            {"layer": d.layer, "here": _finite(d.here), "there": _finite(d.there), "factor": d.factor}
            for d in self.differences
        ]
        return {"folder": str(self.folder), "verdict": self.verdict, "layers": rows}


@dataclass(frozen=True)
class StoredScales:
    """The KV scales of one checkpoint directory as they were when it was read. kv_algorithm: "FP8", "INT8" or None."""

    folder: Path
    kv_algorithm: str | None
    scales: Mapping[int, tuple[float, ...]]
    audit: ScaleAudit


def read_stored_scales(folder: Path) -> StoredScales:
    """Of a TensorRT-LLM checkpoint, or of a Hugging Face one as nvidia-modelopt and others write them.

    Raises CheckpointError: TRT-CONFIG for a folder that is neither, and what is wrong with one that is damaged.
    """
    if _is_hugging_face(folder):
        checkpoint, problems = read_hf_checkpoint(folder, converts=False)
        if checkpoint.spec is None or checkpoint.weights is None:
            first = problems[0]
            raise CheckpointError(first.cause, first.fix, code=first.code, where=first.where)
        return StoredScales(folder, checkpoint.kv_algorithm, checkpoint.kv_scales, checkpoint.scale_audit)
    found = read_trtllm_checkpoint(folder)
    return StoredScales(folder, found.kv_algorithm, found.kv_scales, found.scale_audit)


def read_comparable(folder: Path, kind: Format) -> StoredScales:
    """Scales that can be held against those for a cache of that format. Raises what read_stored_scales raises, and
    InputError CALIB-FORMAT when the cache there has another format.
    """
    there = read_stored_scales(folder)
    _refuse_other_format(kind.upper(), there.kv_algorithm, folder)
    return there


def compare_with_checkpoint(here: Mapping[int, float], there: StoredScales) -> Comparison:
    """Hold scales against those of a checkpoint; reads nothing."""
    differences = compare_scales({layer: (scale,) for layer, scale in here.items()}, there.scales)
    return Comparison(there.folder, there.audit, differences)


def compare_checkpoints(here: Path, there: Path) -> Comparison:
    """The scales of two checkpoint directories. Raises what read_comparable raises."""
    own, other = read_stored_scales(here), read_stored_scales(there)
    _refuse_other_format(own.kv_algorithm, other.kv_algorithm, there)
    return Comparison(there, other.audit, compare_scales(own.scales, other.scales))


def _is_hugging_face(folder: Path) -> bool:
    try:
        config = read_json_fields(folder / "config.json")
    except CheckpointError:
        return False
    return config.has("model_type") and not config.has("architecture")


def _refuse_other_format(here: str | None, there: str | None, folder: Path) -> None:
    """Scales of two formats have no ratio that says anything: one divides by 448, the other by 127."""
    if here and there and here != there:
        raise InputError(
            f"has an {there} KV cache, and the scales here are for {here}: they cannot be held against each other",
            "compare checkpoints whose caches have the same dtype (`trtkit calibrate --set kv_cache.dtype=...`)",
            code="CALIB-FORMAT",
            where=str(folder),
        )


def compare_scales(
    here: Mapping[int, Sequence[float]], there: Mapping[int, Sequence[float]]
) -> tuple[ScaleDifference, ...]:
    """Every layer of either side. A layer may have several scales, which TensorRT-LLM merges by the maximum."""
    layers = sorted({*here, *there})
    return tuple(ScaleDifference(layer, _merged(here, layer), _merged(there, layer)) for layer in layers)


def _merged(scales: Mapping[int, Sequence[float]], layer: int) -> float | None:
    """The layer's largest scale; the first that is none, where there is one."""
    values = scales.get(layer, ())
    return next((value for value in values if not is_scale(value)), max(values, default=None))


def _finite(scale: float | None) -> float | None:
    return scale if scale is not None and math.isfinite(scale) else None
