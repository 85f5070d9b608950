"""What a conversion says of itself: the report it returns and the manifest it leaves. Knows records, writes no file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.conversion.calibration import read_calibration
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.rank_writer import WrittenFile
from trtkit.conversion.source_files import SourceFiles
from trtkit.findings import Finding

MANIFEST_NAME = "conversion.json"
MANIFEST_SCHEMA = "trtkit.conversion/1"


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion wrote. skipped: everything was there already. verified: it was read again and compared."""

    out: Path
    files: tuple[WrittenFile, ...]
    num_tensors: int
    seconds: float
    skipped: bool
    findings: tuple[Finding, ...]
    verified: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of all rank files."""
        return sum(file.num_bytes for file in self.files)

    def summary(self) -> str:
        """The report as a person reads it."""
        what = "kept" if self.skipped else f"wrote in {self.seconds:.1f} s"
        size = f"{len(self.files)} weight files, {self.num_tensors} tensors, {self.num_bytes:,} bytes"
        lines = [f"{what}: {size} in {self.out}"]
        lines += [f"{f.severity} {f.code} {f.where}: {f.cause}; {f.fix}" for f in self.findings]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The `--json` record of `trtkit convert`."""
        stage = {
            "stage": "convert",
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
            "bytes": self.num_bytes,
        }
        return {
            "schema": MANIFEST_SCHEMA,
            "out": str(self.out),
            "stages": [stage],
            "manifest": str(self.out / MANIFEST_NAME),
            "verified": self.verified,
            "files": [asdict(file) for file in self.files],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def findings_of(plan: ConversionPlan, files: SourceFiles, source: Path) -> list[Finding]:
    """The warnings of a conversion: NaN, overflow, scales that stay behind, a constant KV scale."""
    findings = [_about(name, source, *_NON_FINITE) for name in sorted(files.non_finite)]
    findings += [_about(name, source, *_OVERFLOW) for name in sorted(files.overflowed)]
    findings += [_about(name, source, *_DROPPED) for name in plan.dropped_scales]
    findings += [_about(name, source, *_HOMELESS) for name in plan.homeless_scales]
    findings += [_about(name, source, *_REPLACED) for name in _replaced_scales(plan)]
    measured = plan.options.calibration is not None or plan.options.quantization in MODELOPT_QUANTIZATIONS
    no_kv_scales = plan.scales is None or not plan.scales.kv
    if plan.options.kv_cache_dtype == "fp8" and not measured and no_kv_scales:
        findings.append(Finding("CONV-KV-CONSTANT", "note", str(source), *_CONSTANT))
    if plan.spec.sliding_window is not None:
        findings.append(_window(plan.spec, source))
    return findings


def _replaced_scales(plan: ConversionPlan) -> list[str]:
    """KV scales of the source where a calibration file measured others."""
    options = plan.options
    if plan.scales is None or options.kv_cache_dtype != "fp8" or options.calibration is None:
        return []
    return sorted(plan.scales.names["kv"]) if read_calibration(options.calibration).kv_cache else []


_NON_FINITE = (
    "CKPT-NAN",
    "holds NaN or Inf",
    "take the weights from their source again; --strict refuses such a checkpoint",
)
_OVERFLOW = (
    "CONV-OVERFLOW",
    "holds values that became Inf in the target dtype",
    "convert to bfloat16 instead of float16",
)
_DROPPED = (
    "CONV-SCALE-DROPPED",
    "is a scale that the converted checkpoint does not use",
    "add --kv-cache fp8 to keep KV scales",
)
_HOMELESS = (
    "CONV-SCALE-DROPPED",
    "is a scale of something that the converted checkpoint does not quantise with a fixed scale",
    "nothing to do: it stays in 16 bits there, or is scaled anew for every token",
)
_REPLACED = (
    "CONV-SCALE-DROPPED",
    "is a KV scale that gives way to the one of the calibration file",
    "leave out --calibration to keep the checkpoint's own",
)
_CONSTANT = (
    "every KV scale is 1.0, which fits no model in particular",
    "measure them with `trtkit calibrate` and pass --calibration",
)


def _window(spec: ModelSpec, source: Path) -> Finding:
    """TensorRT-LLM takes windows when it runs, not from the checkpoint, so they must not be forgotten there."""
    num_sliding = sum(spec.layer_is_sliding)
    return Finding(
        "CONV-WINDOW",
        "note",
        str(source),
        f"{num_sliding} of {spec.num_layers} layers attend to the last {spec.sliding_window} tokens only",
        "`trtkit build` writes max_attention_window_size; a repository of your own must, or every layer sees all",
    )


def _about(name: str, source: Path, code: str, cause: str, fix: str) -> Finding:
    return Finding(code, "warning", f"{source}:{name}", cause, fix)


def manifest_text(plan: ConversionPlan, written: list[WrittenFile], findings: list[Finding]) -> str:
    """The manifest: no times and no absolute paths, so that equal inputs give an equal file."""
    options = {name: value for name, value in asdict(plan.options).items() if not name.startswith("calibration")}
    sources = sorted({tensor.file for tensor in plan.weights.values()})
    document = {
        "schema": MANIFEST_SCHEMA,
        "trtkit": __version__,
        "family": plan.spec.family,
        "options": options,
        "attention_windows": _windows(plan.spec),
        "tensors": sum(map(len, plan.targets)),
        "source": {file.name: file.stat().st_size for file in sources},
        "files": {file.name: {"bytes": file.num_bytes, "crc32": file.crc32} for file in written},
        "findings": [finding.as_dict() for finding in findings],
    }
    return json.dumps(document, indent=2) + "\n"


def _windows(spec: ModelSpec) -> list[int | None]:
    """The most recent tokens that each layer sees, None for all: config.json has no place for them."""
    sliding = spec.layer_is_sliding or (False,) * spec.num_layers
    return [spec.sliding_window if is_sliding else None for is_sliding in sliding]


def report_of(out: Path) -> ConversionReport | None:
    """The report of a finished `out`, from its manifest; None when that is damaged."""
    try:
        document = json.loads((out / MANIFEST_NAME).read_text(encoding="utf-8"))
        files = tuple(_kept(name, entry) for name, entry in document["files"].items())
        findings = tuple(Finding(**finding) for finding in document["findings"])
        tensors = document["tensors"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    sound = isinstance(tensors, int) and all(isinstance(text, str) for f in findings for text in astuple(f))
    return ConversionReport(out, files, tensors, 0.0, True, findings) if sound else None


def _kept(name: str, entry: Mapping[str, Any]) -> WrittenFile:
    """Raises TypeError for an entry that no conversion wrote."""
    num_bytes, crc32 = entry["bytes"], entry["crc32"]
    if not isinstance(num_bytes, int) or not isinstance(crc32, str):
        raise TypeError(f"{name} has no size or no checksum")
    return WrittenFile(name, num_bytes, crc32, skipped=True)
