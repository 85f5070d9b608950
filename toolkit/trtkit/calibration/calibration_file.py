"""Writes the calibration file that the converter reads (conversion/calibration.py), tied to one checkpoint.

Besides what the converter needs it holds how the numbers came about; `checkpoint.digest` lets scales of another
checkpoint be refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtkit.artifacts import write_text
from trtkit.calibration.number_formats import LARGEST, Format
from trtkit.calibration.records import LayerRecord, TensorRecord
from trtkit.calibration.scales import ScaleMethod, scale_of
from trtkit.conversion.calibration import SCHEMA
from trtkit.conversion.static_scale import static_scale
from trtkit.findings import Finding

FILE_NAME = "calibration.json"


@dataclass(frozen=True)
class ScaleOptions:
    """How limits are chosen, and the format the cache is meant for (mse and entropy depend on it)."""

    method: ScaleMethod = field(default_factory=ScaleMethod)
    kv_format: Format = "fp8"
    input_format: Format = "fp8"


@dataclass(frozen=True)
class Limits:
    """inputs: linear layer -> limit. keys, values: layer -> limit. unused: experts no token was routed to."""

    inputs: Mapping[str, float]
    keys: Mapping[int, float]
    values: Mapping[int, float]
    unused: tuple[str, ...]

    def kv_scales(self, kind: Format) -> dict[int, float]:
        """Layer -> the scale that its keys and values share in a cache of that format. None for INT4, which has steps
        of each token's own.
        """
        if kind == "int4":
            return {}
        return {layer: scale_of(max(limit, self.values[layer]), kind) for layer, limit in self.keys.items()}


def choose_limits(records: Iterable[LayerRecord], modules: Iterable[str], options: ScaleOptions) -> Limits:
    """The limits of every layer. modules: the linear layers that need one.

    An expert that no token was routed to gets the largest limit of the same kind of input in its layer: experts share
    one scale in TensorRT-LLM, so this changes nothing there.
    """
    inputs: dict[str, float] = {}
    keys, values = {}, {}
    by_input = options.method.for_inputs
    for record in records:
        chosen = {name: _limit(tensor, options.input_format, by_input) for name, tensor in record.inputs.items()}
        inputs |= {module: chosen[heard] for module, heard in record.modules.items()}
        keys[record.layer] = _limit(record.keys, options.kv_format, options.method)
        values[record.layer] = _limit(record.values, options.kv_format, options.method)
    unused = tuple(module for module in modules if module not in inputs)
    return Limits(inputs | {module: _siblings(module, inputs) for module in unused}, keys, values, unused)


def calibration_document(limits: Limits, digest: str, options: ScaleOptions) -> dict[str, Any]:
    """The file as a JSON document. k and v are limits: the KV scale is max(k, v) / 448 for FP8, / 127 for INT8."""
    return {
        "schema": SCHEMA,
        "checkpoint": {"digest": digest},
        "method": asdict(options.method),
        "kv_cache_dtype": options.kv_format,
        "inputs": dict(limits.inputs),
        "kv_cache": {str(layer): {"k": limits.keys[layer], "v": limits.values[layer]} for layer in sorted(limits.keys)},
    }


def write_calibration(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file whole or not at all."""
    write_text(path, json.dumps(document, indent=1) + "\n")


def unused_expert_findings(limits: Limits, where: str) -> list[Finding]:
    """A warning when experts were never used: more or more varied text would reach them."""
    if not limits.unused:
        return []
    return [
        Finding(
            "CALIB-EXPERTS",
            "warning",
            where,
            f"no calibration token reached {len(limits.unused)} linear layers of experts, e.g. {limits.unused[0]}",
            "calibrate with more text of the kinds the model is meant for",
        )
    ]


def _limit(tensor: TensorRecord, kind: Format, method: ScaleMethod) -> float:
    """The limit; the largest code itself, so that the scale is 1.0, for a tensor of zeros or of numbers so small that
    float32 has no scale for them.
    """
    limit = method.limit(tensor.histogram, tensor.amax, kind)
    return limit if static_scale(limit, LARGEST[kind]) is not None else LARGEST[kind]


def _siblings(module: str, inputs: Mapping[str, float]) -> float:
    """The largest limit of the other experts' same linear layer."""
    before, _, after = module.partition(".experts.")
    kind = after.partition(".")[2]
    alike = [v for name, v in inputs.items() if name.startswith(f"{before}.experts.") and name.endswith(f".{kind}")]
    assert alike, f"no expert of {before} was measured"
    return max(alike)
