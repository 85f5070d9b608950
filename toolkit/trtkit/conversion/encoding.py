"""Encoding: which encoder each tensor gets under given options. Knows the choice, not the numbers."""

from collections.abc import Callable

from trtkit.checkpoints.weight_only_layout import Bits
from trtkit.conversion.calibration import NO_CALIBRATION, Calibration, read_calibration
from trtkit.conversion.encoder import Encoder
from trtkit.conversion.fp8_encoder import Fp8Encoder, fp8_scale
from trtkit.conversion.fp8_rowwise_encoder import Fp8RowwiseEncoder
from trtkit.conversion.kv_scales import LARGEST, ScaleOf, WithKvScales
from trtkit.conversion.layout import Target
from trtkit.conversion.plain_encoder import PlainEncoder
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.target_values import TargetValues
from trtkit.conversion.weight_only_encoder import WeightOnlyEncoder

EncoderOf = Callable[[Target], Encoder]
_WEIGHT_ONLY_BITS: dict[str, Bits] = {"int8_weight_only": 8, "int4_weight_only": 4}


class Encoders:
    """The encoder of each target of a plan; made once per conversion."""

    def __init__(self, plan: ConversionPlan, source: SourceFiles) -> None:
        options = plan.options
        calibration = read_calibration(options.calibration) if options.calibration else NO_CALIBRATION
        self._plan = plan
        self._plain = PlainEncoder(source, options.dtype)
        self._norm = PlainEncoder(source, options.dtype, plan.spec.norms_add_one)
        self._router = PlainEncoder(source, "float32")
        self._linear = _linear_encoder(plan, source, calibration) or self._plain
        self._scale_of = _kv_scale_of(plan, calibration)

    def __call__(self, target: Target) -> Encoder:
        """The encoder of `target`."""
        if target.kind in ("linear", "expert"):
            encoder = self._linear if self._is_quantized(target) else self._plain
            is_qkv = target.name.endswith("attention.qkv.weight")
            return WithKvScales(encoder, self._scale_of) if is_qkv and self._scale_of else encoder
        return {"norm": self._norm, "router": self._router}.get(target.kind, self._plain)

    def _is_quantized(self, target: Target) -> bool:
        """Row-wise FP8 leaves attention, experts and the first and last layers alone; the others quantise all."""
        if self._plan.options.quantization != "fp8_rowwise":
            return True
        is_inner = 0 < target.layer < self._plan.spec.num_layers - 1
        return is_inner and target.kind == "linear" and ".mlp." in target.name


def _linear_encoder(plan: ConversionPlan, source: SourceFiles, calibration: Calibration) -> Encoder | None:
    options = plan.options
    if options.quantization == "fp8":
        return Fp8Encoder(source, lambda target: fp8_scale(calibration.input_max(_modules(plan, target))))
    if options.quantization == "fp8_rowwise":
        return Fp8RowwiseEncoder(TargetValues(source))
    bits = _WEIGHT_ONLY_BITS.get(options.quantization)
    if bits is None:
        return None
    return WeightOnlyEncoder(TargetValues(source), options.dtype, bits, options.weight_only_arch)


def _modules(plan: ConversionPlan, target: Target) -> list[str]:
    """The checkpoint's names of the linear layers that a target is made of."""
    return sorted({plan.names[piece.source].removesuffix(".weight") for piece in target.slices})


def _kv_scale_of(plan: ConversionPlan, calibration: Calibration) -> ScaleOf | None:
    """The KV scale of a layer: calibrated, or for FP8 without calibration 1.0, which is what TensorRT-LLM writes."""
    kind = plan.options.kv_cache_dtype
    if kind not in LARGEST:
        return None
    if kind == "fp8" and not calibration.kv_cache:
        return lambda layer: 1.0
    return lambda layer: calibration.kv_max(layer) / LARGEST[kind]
