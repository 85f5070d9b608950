"""TensorRT-LLM's names of weight and KV formats, read back into the YAML's. Knows the names, not the formats."""

_QUANTIZATION = {
    None: "none",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_rowwise",
    "W8A16": "int8_weight_only",
    "W4A16": "int4_weight_only",
    "W4A16_AWQ": "int4_awq",
    "W4A8_AWQ": "w4a8_awq",
    "NVFP4": "nvfp4",
}


def quantization_of(quant_algo: str | None) -> str:
    """The YAML's name of a quant_algo; one it has no name for is returned in lower case."""
    if quant_algo is not None and quant_algo.startswith("W8A8_SQ"):
        return "int8_smoothquant"
    return _QUANTIZATION.get(quant_algo, str(quant_algo).lower())


def kv_dtype_of(kv_cache_quant_algo: str | None) -> str:
    """The YAML's name of a kv_cache_quant_algo: "auto", "fp8", "int8"."""
    return kv_cache_quant_algo.lower() if kv_cache_quant_algo else "auto"
