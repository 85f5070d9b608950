"""Rules about the scales of a quantised KV cache, in TensorRT-LLM and in Hugging Face checkpoints. Reads no file."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from trtkit.checking.rule import Hit, LooksAt, Rule, hit
from trtkit.checking.scales import ScaleAudit, is_scale

_SHOWN = 3


class ScaledCheckpoint(Protocol):
    """What the rules need of a checkpoint of either kind; kv_algorithm is None for a cache that is not quantised."""

    @property
    def kv_algorithm(self) -> str | None: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def kv_scales(self) -> Mapping[int, tuple[float, ...]]: ...

    @property
    def scale_audit(self) -> ScaleAudit: ...


def _scales_absent(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    if checkpoint.kv_algorithm and checkpoint.scale_audit.verdict == "absent":
        yield hit("", algorithm=checkpoint.kv_algorithm)


def _scales_incomplete(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if checkpoint.kv_algorithm and audit.verdict == "incomplete":
        layers = ", ".join(map(str, audit.missing[:_SHOWN])) + (", ..." if len(audit.missing) > _SHOWN else "")
        yield hit("", layers=layers, count=len(audit.missing))


def _scales_invalid(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "invalid":
        first = audit.invalid[0]
        value = next(value for value in checkpoint.kv_scales[first] if not is_scale(value))
        yield hit("", layer=first, value=value, count=len(audit.invalid))


def _scales_constant(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if checkpoint.kv_algorithm and audit.verdict == "constant":
        yield hit("", value=audit.smallest, count=checkpoint.num_layers)


def _scales_clamped(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "calibrated" and audit.clamped:
        yield hit("", ones=audit.num_ones, largest=audit.largest)


def _scales_calibrated(checkpoint: ScaledCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "calibrated" and not audit.clamped:
        yield hit("", **_figures(checkpoint))


def _figures(checkpoint: ScaledCheckpoint) -> Mapping[str, object]:
    audit = checkpoint.scale_audit
    return {"smallest": audit.smallest, "median": audit.median, "largest": audit.largest, "ones": audit.num_ones}


_LOOKS: LooksAt = "TensorRT-LLM checkpoint"
_CALIBRATE = "calibrate and convert again"
SCALE_RULES: tuple[Rule[ScaledCheckpoint], ...] = (
    Rule(
        code="SCALE-ABSENT",
        severity="error",
        looks_at=_LOOKS,
        when="a quantised KV cache is announced, and no layer has a scale",
        cause="the KV cache is {algorithm}, and no layer has a scale for it",
        fix=_CALIBRATE + ", or convert with kv_cache.dtype auto",
        source="modeling_utils.py; vLLM issue #54623",
        find=_scales_absent,
        example=hit("", algorithm="FP8"),
    ),
    Rule(
        code="SCALE-INCOMPLETE",
        severity="error",
        looks_at=_LOOKS,
        when="some layers have a KV scale and some have none",
        cause="{count} layers have no KV scale: {layers}",
        fix=_CALIBRATE,
        source="modeling_utils.py: required in every layer",
        find=_scales_incomplete,
        example=hit("", count=1, layers="17"),
    ),
    Rule(
        code="SCALE-INVALID",
        severity="error",
        looks_at=_LOOKS,
        when="a KV scale is zero, negative, infinite or no number",
        cause="layer {layer} has the KV scale {value} ({count} such layers)",
        fix=_CALIBRATE,
        source="x is about q * scale, so a scale is finite and positive",
        find=_scales_invalid,
        example=hit("", layer=3, value=float("nan"), count=1),
    ),
    Rule(
        code="SCALE-CONSTANT",
        severity="warning",
        looks_at=_LOOKS,
        when="every layer of several has the same KV scale, and it is 1.0 or no power of two",
        cause="all {count} layers have the KV scale {value}: a constant cast, not a calibration",
        fix=_CALIBRATE + " when parity shows differences; with values below 448 a scale of 1.0 loses small ones only",
        source="ModelOpt's fp8_cast; Model-Optimizer issue #20",
        find=_scales_constant,
        example=hit("", count=32, value=1.0),
    ),
    Rule(
        code="SCALE-CLAMPED",
        severity="warning",
        looks_at=_LOOKS,
        when="KV scales are exactly 1.0 in some layers and larger in the others",
        cause="{ones} layers have a KV scale of exactly 1.0 and none a smaller one (largest {largest:.3g}): clamped",
        fix="measure and convert with trtkit (`trtkit calibrate`), or export for Hugging Face with a ModelOpt of March"
        " 2026 or later: its export for TensorRT-LLM always clamps",
        source="Model-Optimizer PR #1012; modelopt 0.47, torch/export/quant_utils.py",
        find=_scales_clamped,
        example=hit("", ones=30, largest=1.7),
    ),
    Rule(
        code="SCALE-CALIBRATED",
        severity="note",
        looks_at=_LOOKS,
        when="KV scales differ from layer to layer, or are powers of two other than 1.0, or there is one layer",
        cause="KV scales from {smallest:.3g} over {median:.3g} to {largest:.3g}, in {ones} layers exactly 1.0",
        fix="nothing to do",
        source="calibration",
        find=_scales_calibrated,
        example=hit("", smallest=0.003, median=0.02, largest=0.05, ones=0),
    ),
)
