"""ConversionOptions: what one conversion is asked for. Knows values and their names, not what they do."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from trtkit.artifacts import sha256_of
from trtkit.errors import InputError

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Quantization = Literal[
    "none",
    "fp8",
    "fp8_rowwise",
    "int8_weight_only",
    "int4_weight_only",
    "int4_awq",
    "w4a8_awq",
    "int8_smoothquant",
    "nvfp4",
]
KvCacheDtype = Literal["auto", "fp8", "int8", "int4"]
OutputFormat = Literal["tensorrt_llm", "hf"]

MODELOPT_QUANTIZATIONS = ("int4_awq", "w4a8_awq", "int8_smoothquant", "nvfp4")
"""What nvidia-modelopt quantises, calibrating on token ids; the rest trtkit writes itself."""
HF_QUANTIZATIONS = ("fp8", "int4_awq", "w4a8_awq", "nvfp4")
"""What TensorRT-LLM's PyTorch backend reads from a checkpoint in Hugging Face's format."""

DEFAULT_ARCH = 80
"""The SM version that INT8 and INT4 weights are packed for when nothing names a GPU: Ampere's and Ada's order."""


@dataclass(frozen=True)
class ConversionOptions:
    """One conversion.

    dtype               of everything that is not quantised; "auto" takes the checkpoint's (float32 becomes float16)
    kv_cache_dtype      "int4" exists in the reference engine only: it stores no scale
    use_parallel_embedding, embedding_sharding_dim
                        cut the embedding over the tensor ranks, by vocabulary (0) or by hidden size (1)
    weight_only_arch    SM version whose layout packed INT8/INT4 weights get
    pad_vocab_to        rows of embedding and head, more than the model has: the mean row fills them, whose logit is the
                        mean of the logits and so never the largest; None leaves the vocabulary as it is
    calibration         file of activation and KV maxima, or None
    calibration_ids     samples as token ids, for the quantisations that modelopt calibrates itself
    strict              refuse NaN and Inf weights instead of warning
    allow_pickle        read pickles (with torch's weights_only loader) where there is no safetensors file
    output_format       "tensorrt_llm", or "hf" for the PyTorch backend (HF_QUANTIZATIONS)
    """

    dtype: Dtype = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDtype = "auto"
    use_parallel_embedding: bool = False
    embedding_sharding_dim: Literal[0, 1] = 0
    weight_only_arch: int = DEFAULT_ARCH
    pad_vocab_to: int | None = None
    calibration: Path | None = None
    calibration_ids: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    strict: bool = False
    allow_pickle: bool = False
    output_format: OutputFormat = "tensorrt_llm"

    def __post_init__(self) -> None:
        problem = next(chain(_unknown_values(self), _contradictions(self)), None)
        if problem is not None:
            raise InputError(*problem, code="CONV-OPTION")

    @property
    def only_kv_scales(self) -> bool:
        """Whether a Hugging Face checkpoint keeps its weights and gets calibrated scales of an FP8 cache."""
        return self.output_format == "hf" and self.quantization == "none" and self.kv_cache_dtype == "fp8"

    def decides(self) -> dict[str, Any]:
        """What of the options decides the files, by content: where the calibration file lies does not count."""
        calibration = sha256_of(self.calibration) if self.calibration and self.calibration.is_file() else None
        options = repr(replace(self, calibration=None))
        return {"options": options, "calibration": calibration, "ids": self.calibration_ids}


_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "quantization": get_args(Quantization),
    "kv_cache_dtype": get_args(KvCacheDtype),
    "output_format": get_args(OutputFormat),
}


def _unknown_values(options: ConversionOptions) -> Iterator[tuple[str, str]]:
    """(cause, fix) of every value that is none of its option's."""
    for name, choices in _CHOICES.items():
        if getattr(options, name) not in choices:
            yield f"{name} {getattr(options, name)!r} is unknown", f"use one of {', '.join(choices)}"
    for name in ("tensor_parallel", "pipeline_parallel", "expert_parallel"):
        if getattr(options, name) < 1:
            yield f"{name} {getattr(options, name)} is not positive", "use 1 or more"
    if options.weight_only_arch < DEFAULT_ARCH:
        yield (
            f"TensorRT-LLM runs on no GPU of SM {options.weight_only_arch}",
            "give its SM version, such as 80, 89 or 90",
        )


def _contradictions(options: ConversionOptions) -> Iterator[tuple[str, str]]:
    """(cause, fix) of options that exclude each other."""
    if options.output_format == "hf" and options.quantization not in HF_QUANTIZATIONS and not options.only_kv_scales:
        yield (
            f"a Hugging Face checkpoint is not written for {options.quantization}",
            f"use --quantization {', '.join(HF_QUANTIZATIONS)}, or --kv-cache fp8 and --calibration for KV scales",
        )
    if options.output_format == "hf" and _is_cut(options):
        yield (
            "a checkpoint in Hugging Face's format has no ranks: it is cut when it is loaded",
            "leave out --tp, --pp, --ep and --parallel-embedding",
        )
    if options.quantization in MODELOPT_QUANTIZATIONS and options.kv_cache_dtype not in ("auto", "fp8"):
        yield (
            f"modelopt writes no {options.kv_cache_dtype} KV cache with {options.quantization}",
            "use --kv-cache auto or fp8 with this quantization",
        )
    if options.pad_vocab_to is not None and (
        options.output_format == "hf" or options.quantization in MODELOPT_QUANTIZATIONS
    ):
        yield (
            "the vocabulary is padded only in TensorRT-LLM checkpoints that trtkit quantises itself",
            "leave out the padding, or choose another quantization and format",
        )
    if options.tensor_parallel % options.expert_parallel:
        yield (
            f"expert_parallel {options.expert_parallel} does not divide tensor_parallel {options.tensor_parallel}",
            "experts are spread over the tensor ranks: choose a divisor",
        )


def _is_cut(options: ConversionOptions) -> bool:
    ranks = (options.tensor_parallel, options.pipeline_parallel, options.expert_parallel)
    return max(ranks) > 1 or options.use_parallel_embedding
