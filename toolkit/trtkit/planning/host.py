"""Host memory and disk that a build needs. Knows sizes of tensors, probes no machine."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split
from trtkit.planning.tensors import rank_tensors
from trtkit.planning.weights import BY_MODELOPT, FLOAT32_BYTES, WeightFormat, num_parameters

# Interpreter, numpy, safetensors and the read and write blocks of the streaming converter.
CONVERTER_BYTES = 400 << 20
# Interpreter, torch and transformers, and the activations of one text.
CALIBRATION_BYTES = 1 << 30
# The calibration pass reads the next layer while one is still there.
CALIBRATED_LAYERS = 2
# trtllm-build holds a rank's weights and, while it serialises, the engine.
BUILDER_COPIES = 2
_LAYERS = "transformer.layers."


@dataclass(frozen=True)
class ConvertedModel:
    """One model of a build, and the bytes of its rank files."""

    spec: ModelSpec
    weights: WeightFormat
    rank_bytes: tuple[int, ...]


@dataclass(frozen=True)
class HostNeed:
    """peak_bytes of calibration and conversion as the build does them; unstreamed_bytes with the whole model in memory.

    The two are equal where nvidia-modelopt quantises the largest model: it holds all of it. builder_bytes_per_worker:
    of one trtllm-build worker, 0 for backends without one. disk_bytes: of what the build writes.
    """

    peak_bytes: int
    unstreamed_bytes: int
    builder_bytes_per_worker: int
    disk_bytes: int


def conversion_peak(model: ConvertedModel) -> int:
    """The peak of a model's conversion, and of the measuring before it where a build measures.

    The streaming converter needs its own size, and for quantised weights the largest one twice in float32.
    """
    if model.weights.quantization in BY_MODELOPT:
        return _whole(model)
    if model.weights.quantization == "none":
        return max(CONVERTER_BYTES, _calibration_peak(model))
    shapes = (tensor.shape for tensor in rank_tensors(model.spec, Split(), 0) if tensor.kind == "linear")
    return max(CONVERTER_BYTES + 2 * max(map(math.prod, shapes)) * FLOAT32_BYTES, _calibration_peak(model))


def _calibration_peak(model: ConvertedModel) -> int:
    """What measuring takes where nothing can be converted without: the inputs of FP8 weights, an INT8 cache."""
    if model.weights.quantization != "fp8" and model.weights.kv_dtype != "int8":
        return 0
    layers: Counter[str] = Counter()
    for tensor in rank_tensors(model.spec, Split(), 0):
        if tensor.name.startswith(_LAYERS):
            layers[tensor.name.removeprefix(_LAYERS).split(".")[0]] += math.prod(tensor.shape)
    return CALIBRATION_BYTES + CALIBRATED_LAYERS * max(layers.values()) * model.weights.dtype_bytes


def _whole(model: ConvertedModel) -> int:
    """The model as it is stored and as it is written, both in memory."""
    return CONVERTER_BYTES + _source_bytes(model.spec) + sum(model.rank_bytes)


def host_need(models: Sequence[ConvertedModel], *, engines: bool) -> HostNeed:
    """The need of a build; `models` are converted one after another. Nothing when there are none."""
    if not models:
        return HostNeed(0, 0, 0, 0)
    written = sum(sum(model.rank_bytes) for model in models)
    return HostNeed(
        peak_bytes=max(conversion_peak(model) for model in models),
        unstreamed_bytes=max(_whole(model) for model in models),
        builder_bytes_per_worker=BUILDER_COPIES * max(max(model.rank_bytes) for model in models) if engines else 0,
        disk_bytes=2 * written if engines else written,
    )


def _source_bytes(spec: ModelSpec) -> int:
    """Bytes of the Hugging Face checkpoint, in the dtype that config.json names (16 bits when it names none)."""
    return num_parameters(spec) * WeightFormat(spec.dtype or "bfloat16").dtype_bytes
