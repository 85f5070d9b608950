"""Host memory and disk that a build needs. Knows sizes of tensors, probes no machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.split import Split
from trtkit.planning.tensors import rank_tensors
from trtkit.planning.weights import FLOAT32_BYTES, WeightFormat, num_parameters

# Interpreter, numpy, safetensors and the read and write blocks of the streaming converter.
CONVERTER_BYTES = 400 << 20
# trtllm-build holds a rank's weights and, while it serialises, the engine.
BUILDER_COPIES = 2


@dataclass(frozen=True)
class ConvertedModel:
    """One model of a build, and the bytes of its rank files."""

    spec: ModelSpec
    weights: WeightFormat
    rank_bytes: tuple[int, ...]


@dataclass(frozen=True)
class HostNeed:
    """peak_bytes of trtkit's streaming conversion; unstreamed_bytes of a converter that loads the whole model.

    builder_bytes_per_worker: of one trtllm-build worker, 0 for backends without one. disk_bytes: of what the build
    writes.
    """

    peak_bytes: int
    unstreamed_bytes: int
    builder_bytes_per_worker: int
    disk_bytes: int


def conversion_peak(spec: ModelSpec, weights: WeightFormat) -> int:
    """The streaming converter's peak: its own size, and for quantised weights the largest one twice in float32."""
    if weights.quantization == "none":
        return CONVERTER_BYTES
    largest = max(math.prod(tensor.shape) for tensor in rank_tensors(spec, Split(), 0) if tensor.kind == "linear")
    return CONVERTER_BYTES + 2 * largest * FLOAT32_BYTES


def host_need(models: Sequence[ConvertedModel], *, engines: bool) -> HostNeed:
    """The need of a build; `models` are converted one after another. Nothing when there are none."""
    if not models:
        return HostNeed(0, 0, 0, 0)
    written = sum(sum(model.rank_bytes) for model in models)
    return HostNeed(
        peak_bytes=max(conversion_peak(model.spec, model.weights) for model in models),
        unstreamed_bytes=max(_source_bytes(model.spec) + sum(model.rank_bytes) for model in models),
        builder_bytes_per_worker=BUILDER_COPIES * max(max(model.rank_bytes) for model in models) if engines else 0,
        disk_bytes=2 * written if engines else written,
    )


def _source_bytes(spec: ModelSpec) -> int:
    """Bytes of the Hugging Face checkpoint, in the dtype that config.json names (16 bits when it names none)."""
    return num_parameters(spec) * WeightFormat(spec.dtype or "bfloat16").dtype_bytes
