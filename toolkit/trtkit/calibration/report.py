"""CalibrationReport: what one calibration says, as a record and as a JSON document. Computes and prints nothing."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtkit.artifacts import write_text
from trtkit.calibration.compare import Comparison
from trtkit.calibration.number_formats import Format
from trtkit.calibration.outliers import CacheAdvice, LayerOutliers
from trtkit.calibration.price import PriceRow
from trtkit.findings import Finding

REPORT_NAME, HEAT_MAP_NAME, PRICE_PLOT_NAME = "report.json", "outliers.png", "price.png"
SCHEMA = "trtkit.calibration-report/1"


@dataclass(frozen=True)
class Measured:
    """What was run: so that the same command gives the same report. percentile: None for the other methods."""

    checkpoint: str
    digest: str
    num_samples: int
    num_tokens: int
    seed: int
    dtype: str
    method: str
    percentile: float | None = None


@dataclass(frozen=True)
class CalibrationReport:
    """One checkpoint's calibration; `out` holds calibration.json, report.json, the heat map and a record per layer.

    kv_format: of the cache that the scales are for. kv_scales: layer -> the scale of its cache, by the chosen method;
    empty for INT4. prices, modelopt (the directory it wrote) and comparison are there when they were asked for.
    """

    out: Path
    measured: Measured
    layers: tuple[LayerOutliers, ...]
    kv_format: Format
    kv_scales: Mapping[int, float]
    cache_advice: CacheAdvice
    cache_reason: str
    findings: tuple[Finding, ...]
    prices: tuple[PriceRow, ...] = ()
    modelopt: Path | None = None
    comparison: Comparison | None = None

    def as_dict(self) -> dict[str, Any]:
        """The document of report.json and of the `--json` contract."""
        return {
            "schema": SCHEMA,
            "out": str(self.out),
            "measured": asdict(self.measured),
            "kv_cache": {"dtype": self.kv_format, "advice": self.cache_advice, "reason": self.cache_reason},
            "prices": [price.as_dict() for price in self.prices],
            "modelopt": str(self.modelopt) if self.modelopt else None,
            "comparison": self.comparison.as_dict() if self.comparison else None,
            "layers": [_finite(_layer(layer, self.kv_scales.get(layer.layer))) for layer in self.layers],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def write_report(report: CalibrationReport, folder: Path) -> None:
    """Write report.json into `folder`; what it says of the place of the files is relative to it."""
    document = report.as_dict() | {"out": "."}
    write_text(folder / REPORT_NAME, json.dumps(document, indent=1) + "\n")


def _layer(layer: LayerOutliers, kv_scale: float | None) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "kv_scale": kv_scale,
        "tensors": [asdict(tensor) | {"errors": dict(layer.errors[tensor.name])} for tensor in layer.tensors],
        "advice": [asdict(advice) for advice in layer.advice],
    }


def _finite(value: Any) -> Any:
    """The same with null for what JSON cannot say: an infinite noise."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sum_of_advice(layers: Sequence[LayerOutliers]) -> dict[str, int]:
    """How often each action is advised for linear inputs."""
    counts: dict[str, int] = {}
    for layer in layers:
        for advice in layer.advice:
            if advice.module not in ("k", "v"):
                counts[advice.action] = counts.get(advice.action, 0) + 1
    return counts
