"""Rules about a TensorRT-LLM checkpoint: rank files, expected tensors, KV scales. Knows no engine."""

from collections.abc import Iterable, Mapping

from trtkit.checking.expected_tensors import expected_tensors
from trtkit.checking.rule import Hit, LooksAt, Rule, hit
from trtkit.checking.subjects.trtllm_checkpoint import TrtllmCheckpoint

_SHOWN = 3


def _missing_ranks(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    missing = [rank for rank in range(checkpoint.world_size) if rank not in checkpoint.ranks]
    if missing:
        yield hit("", files=", ".join(f"rank{rank}.safetensors" for rank in missing), world=checkpoint.world_size)


def _missing_tensors(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    for rank, tensors in checkpoint.ranks.items():
        expected = expected_tensors(checkpoint, rank)
        tied = "transformer.vocab_embedding.weight" in tensors
        absent = [n for n in expected if n not in tensors and not (n == "lm_head.weight" and tied)]
        if absent:
            yield hit(f"rank{rank}.safetensors", count=len(absent), names=_listed(absent))


def _unexpected_tensors(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    for rank, tensors in checkpoint.ranks.items():
        expected = expected_tensors(checkpoint, rank)
        extra = [name for name in tensors if expected and name not in expected and not _is_quantisation(name)]
        if extra:
            yield hit(f"rank{rank}.safetensors", count=len(extra), names=_listed(extra))


def _wrong_shapes(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    if checkpoint.quant_algorithm is not None:
        return
    for rank, tensors in checkpoint.ranks.items():
        for name, shape in expected_tensors(checkpoint, rank).items():
            if name in tensors and tensors[name].shape != shape:
                yield hit(f"rank{rank}.safetensors", name=name, found=list(tensors[name].shape), shape=list(shape))


def _is_quantisation(name: str) -> bool:
    return name.rpartition(".")[2] not in ("weight", "bias")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _scales_absent(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    if checkpoint.kv_algorithm and checkpoint.scale_audit.verdict == "absent":
        yield hit("config.json:quantization.kv_cache_quant_algo", algorithm=checkpoint.kv_algorithm)


def _scales_incomplete(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if checkpoint.kv_algorithm and audit.verdict == "incomplete":
        layers = ", ".join(map(str, audit.missing[:_SHOWN])) + (", ..." if len(audit.missing) > _SHOWN else "")
        yield hit("", layers=layers, count=len(audit.missing))


def _scales_invalid(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "invalid":
        values = [value for layer in audit.invalid for value in checkpoint.kv_scales[layer]]
        yield hit("", layer=audit.invalid[0], value=values[0], count=len(audit.invalid))


def _scales_constant(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if checkpoint.kv_algorithm and audit.verdict == "constant":
        yield hit("", value=audit.smallest, count=checkpoint.num_layers)


def _scales_clamped(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "calibrated" and audit.clamped:
        yield hit("", ones=audit.num_ones, largest=audit.largest)


def _scales_calibrated(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    audit = checkpoint.scale_audit
    if audit.verdict == "calibrated" and not audit.clamped:
        yield hit("", **_figures(checkpoint))


def _figures(checkpoint: TrtllmCheckpoint) -> Mapping[str, object]:
    audit = checkpoint.scale_audit
    return {"smallest": audit.smallest, "median": audit.median, "largest": audit.largest, "ones": audit.num_ones}


_LOOKS: LooksAt = "TensorRT-LLM checkpoint"
_CALIBRATE = "calibrate and convert again"
TRTLLM_CHECKPOINT_RULES: tuple[Rule[TrtllmCheckpoint], ...] = (
    Rule(
        code="TRT-RANKS",
        severity="error",
        looks_at=_LOOKS,
        when="a rank file that config.json's mapping announces is not there",
        cause="{files} missing; config.json announces {world} ranks",
        fix="convert again into this directory; finished ranks are kept",
        source="modeling_utils.py: one file per rank",
        find=_missing_ranks,
        example=hit("", files="rank3.safetensors", world=4),
    ),
    Rule(
        code="TRT-MISSING",
        severity="error",
        looks_at=_LOOKS,
        when="a tensor that the architecture needs is not in its rank file",
        cause="{count} tensors missing: {names}",
        fix="convert again; the loader stops at the first of them",
        source="modeling_utils.py: required tensors; TensorRT-LLM issue #1677",
        find=_missing_tensors,
        example=hit("rank0.safetensors", count=1, names="transformer.layers.0.mlp.gate.weight"),
    ),
    Rule(
        code="TRT-EXTRA",
        severity="warning",
        looks_at=_LOOKS,
        when="a rank file holds weights that the architecture has no place for",
        cause="{count} tensors that the loader ignores: {names}",
        fix="check that config.json and the rank files are from the same conversion",
        source="modeling_utils.py: unexpected tensors only warn",
        find=_unexpected_tensors,
        example=hit("rank0.safetensors", count=1, names="transformer.layers.0.mlp.extra.weight"),
    ),
    Rule(
        code="TRT-SHAPE",
        severity="error",
        looks_at=_LOOKS,
        when="a tensor of an unquantised checkpoint has another shape than config.json makes it",
        cause="{name} has shape {found}, config.json makes it {shape}",
        fix="convert again; check tp_size and the heads in config.json",
        source="models/llama/convert.py and its siblings",
        find=_wrong_shapes,
        example=hit("rank0.safetensors", name="lm_head.weight", found=[32000, 64], shape=[32016, 64]),
    ),
    Rule(
        code="SCALE-ABSENT",
        severity="error",
        looks_at=_LOOKS,
        when="config.json names a quantised KV cache, and no layer has a scale",
        cause="the KV cache is {algorithm}, and no layer has a kv_cache_scaling_factor",
        fix=_CALIBRATE + ", or convert with kv_cache.dtype auto",
        source="modeling_utils.py; vLLM issue #54623",
        find=_scales_absent,
        example=hit("config.json:quantization.kv_cache_quant_algo", algorithm="FP8"),
    ),
    Rule(
        code="SCALE-INCOMPLETE",
        severity="error",
        looks_at=_LOOKS,
        when="some layers have a KV scale and some have none",
        cause="{count} layers have no kv_cache_scaling_factor: {layers}",
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
        when="every layer has the same KV scale",
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
        cause="{ones} KV scales are exactly 1.0 and none is smaller (largest {largest:.3g}): they were clamped",
        fix="export again with a ModelOpt of March 2026 or later",
        source="Model-Optimizer PR #1012",
        find=_scales_clamped,
        example=hit("", ones=30, largest=1.7),
    ),
    Rule(
        code="SCALE-CALIBRATED",
        severity="note",
        looks_at=_LOOKS,
        when="KV scales differ from layer to layer",
        cause="KV scales from {smallest:.3g} over {median:.3g} to {largest:.3g}, {ones} exactly 1.0",
        fix="nothing to do",
        source="calibration",
        find=_scales_calibrated,
        example=hit("", smallest=0.003, median=0.02, largest=0.05, ones=0),
    ),
)
