"""Encoding: which encoder each tensor gets under given options. Knows the choice, not the numbers."""

from collections.abc import Callable, Mapping

from trtkit.checkpoints.weight_only_layout import Bits
from trtkit.conversion.calibration import NO_CALIBRATION, Calibration, read_calibration
from trtkit.conversion.carried_fp8_encoder import CarriedFp8Encoder, CarriedFp8RowwiseEncoder
from trtkit.conversion.casting import E4M3_MAX
from trtkit.conversion.encoder import Encoder
from trtkit.conversion.fp8_encoder import Fp8Encoder
from trtkit.conversion.fp8_rowwise_encoder import Fp8RowwiseEncoder
from trtkit.conversion.kv_scales import LARGEST, KvScale, ScaleOf, WithKvScales
from trtkit.conversion.layout import Target
from trtkit.conversion.plain_encoder import PlainEncoder
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.target_values import TargetValues
from trtkit.conversion.weight_only_encoder import WeightOnlyEncoder
from trtkit.errors import CheckpointError

EncoderOf = Callable[[Target], Encoder]
_WEIGHT_ONLY_BITS: dict[str, Bits] = {"int8_weight_only": 8, "int4_weight_only": 4}


class Encoders:
    """The encoder of each target of a plan; made once per conversion."""

    def __init__(self, plan: ConversionPlan, source: SourceFiles) -> None:
        options = plan.options
        calibration = read_calibration(options.calibration) if options.calibration else NO_CALIBRATION
        self._plan = plan
        self._plain = PlainEncoder(source, options.dtype, scales=plan.dequantized)
        self._norm = PlainEncoder(source, options.dtype, plan.spec.norms_add_one)
        self._router = PlainEncoder(source, "float32", scales=plan.dequantized)
        self._linear = _linear_encoder(plan, source, calibration) or self._plain
        self._scale_of = _kv_scale_of(plan, calibration)

    def __call__(self, target: Target) -> Encoder:
        """The encoder of `target`."""
        if target.kind in ("linear", "expert"):
            encoder = self._linear if is_quantized(self._plan, target) else self._plain
            is_qkv = target.name.endswith("attention.qkv.weight")
            return WithKvScales(encoder, self._scale_of) if is_qkv and self._scale_of else encoder
        return {"norm": self._norm, "router": self._router}.get(target.kind, self._plain)


def is_quantized(plan: ConversionPlan, target: Target) -> bool:
    """Whether a linear target is stored quantised.

    A source that is quantised decides it itself, layer by layer. Row-wise FP8 leaves attention, experts and the first
    and last layers alone (Meta's recipe); the other quantisations take every linear layer. Raises CheckpointError
    CKPT-QUANT when only some parts of a fused layer are quantised.
    """
    if plan.scales is not None and plan.scales.weights:
        stored = {module in plan.scales.weights for module in modules_of(plan, target)}
        if len(stored) == 2:
            raise CheckpointError(
                f"only some of the parts of {target.name} are FP8",
                "quantise the checkpoint again with q, k and v (up and gate) treated alike",
                code="CKPT-QUANT",
                where=target.slices[0].source,
            )
        return stored == {True}
    if plan.options.quantization != "fp8_rowwise":
        return plan.options.quantization != "none"
    is_inner = 0 < target.layer < plan.spec.num_layers - 1
    return is_inner and target.kind == "linear" and ".mlp." in target.name


def modules_of(plan: ConversionPlan, target: Target) -> list[str]:
    """The checkpoint's names of the linear layers that a target is made of."""
    return sorted({plan.names[piece.source].removesuffix(".weight") for piece in target.slices})


def _linear_encoder(plan: ConversionPlan, source: SourceFiles, calibration: Calibration) -> Encoder | None:
    options, scales = plan.options, plan.scales

    def input_scale_of(target: Target) -> float:
        modules = modules_of(plan, target)
        if scales is not None and all(module in scales.inputs for module in modules):
            return max(scales.inputs[module] for module in modules)
        return calibration.input_scale(modules, E4M3_MAX)

    if options.quantization == "fp8":
        if scales is not None and scales.weights:
            return CarriedFp8Encoder(source, scales, plan.names, input_scale_of)
        return Fp8Encoder(source, input_scale_of)
    if options.quantization == "fp8_rowwise":
        if scales is not None and scales.weights:
            return CarriedFp8RowwiseEncoder(source, scales, plan.names)
        return Fp8RowwiseEncoder(TargetValues(source))
    bits = _WEIGHT_ONLY_BITS.get(options.quantization)
    if bits is None:
        return None
    return WeightOnlyEncoder(TargetValues(source), options.dtype, bits, options.weight_only_arch)


def _kv_scale_of(plan: ConversionPlan, calibration: Calibration) -> ScaleOf | None:
    """The KV scales of a layer: calibrated; else the source's, keys' and values' merged; for FP8 without either 1.0, as
    TensorRT-LLM writes it.
    """
    kind = plan.options.kv_cache_dtype
    if kind not in LARGEST:
        return None
    own = plan.scales.kv if plan.scales is not None else {}
    if calibration.kv_cache or kind != "fp8":
        return lambda layer: KvScale(*calibration.kv_scales(layer, kind))
    if own:
        return lambda layer: _own_kv_scale(own, layer)
    return lambda layer: KvScale(1.0)


def _own_kv_scale(own: Mapping[int, float], layer: int) -> KvScale:
    if layer not in own:
        raise CheckpointError(
            f"the checkpoint has KV scales for {len(own)} layers, but none for layer {layer}",
            "calibrate it again (`trtkit calibrate`) and pass the file with --calibration",
            code="CKPT-SCALE",
        )
    return KvScale(own[layer])
