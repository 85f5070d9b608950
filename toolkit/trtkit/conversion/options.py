"""ConversionOptions: what one conversion is asked for. Knows values and their names, not what they do."""

from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class ConversionOptions:
    """One conversion.

    dtype               of everything that is not quantised; "auto" takes the checkpoint's (float32 becomes float16)
    kv_cache_dtype      "int4" exists in the reference engine only: it stores no scale
    use_parallel_embedding, embedding_sharding_dim
                        cut the embedding over the tensor ranks, by vocabulary (0) or by hidden size (1)
    weight_only_arch    SM version whose layout packed INT8/INT4 weights get
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
    weight_only_arch: int = 80
    calibration: Path | None = None
    calibration_ids: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    strict: bool = False
    allow_pickle: bool = False
    output_format: OutputFormat = "tensorrt_llm"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} {getattr(self, name)!r} is unknown", f"use one of {', '.join(choices)}", code="CONV-OPTION"
                )
        for name in ("tensor_parallel", "pipeline_parallel", "expert_parallel"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)} is not positive", "use 1 or more", code="CONV-OPTION")
        if self.output_format == "hf" and self.quantization not in HF_QUANTIZATIONS:
            raise InputError(
                f"a Hugging Face checkpoint is not written for {self.quantization}",
                f"use --quantization {', '.join(HF_QUANTIZATIONS)}, or the original checkpoint",
                code="CONV-OPTION",
            )
        if self.quantization in MODELOPT_QUANTIZATIONS and self.kv_cache_dtype not in ("auto", "fp8"):
            raise InputError(
                f"modelopt writes no {self.kv_cache_dtype} KV cache with {self.quantization}",
                "use --kv-cache auto or fp8 with this quantization",
                code="CONV-OPTION",
            )
        if self.tensor_parallel % self.expert_parallel:
            raise InputError(
                f"expert_parallel {self.expert_parallel} does not divide tensor_parallel {self.tensor_parallel}",
                "experts are spread over the tensor ranks: choose a divisor",
                code="CONV-OPTION",
            )

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
