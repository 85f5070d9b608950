"""Which format a model's cache has: what the options and the checkpoint ask for. Knows scales, stores nothing."""

import torch

from trtkit.errors import InputError
from trtkit.reference.kv_cache.formats import E4M3_MAX, INT8_MAX, Format, Fp8, Int4, Int8, Scale
from trtkit.reference.kv_cache.options import KvDtype
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.weights import Weights

# What ModelConfig calls them -> the formats.
KV_ALGORITHMS: dict[str | None, KvDtype] = {None: "float", "FP8": "fp8", "INT8": "int8", "INT4": "int4"}
_LARGEST = {"fp8": E4M3_MAX, "int8": INT8_MAX}


def kv_format(asked: KvDtype, config: ModelConfig, weights: Weights) -> Format | None:
    """The codec, or None for the model's own dtype.

    "auto" takes what the checkpoint was converted for. Scales are the checkpoint's; those measured for the other eight
    bit format say how large the numbers get, too. Without any, FP8 has the scale 1, as TensorRT-LLM's converters write,
    and INT8 is impossible: raises InputError KV-SCALES. Raises InputError KV-HEAD where INT4 does not fit the heads.
    """
    stored = KV_ALGORITHMS[config.quantization.kv_cache_algorithm]
    kind = stored if asked == "auto" else asked
    heads, dtype = (config.num_kv_heads, config.head_dim), getattr(torch, config.dtype)
    if kind == "float":
        return None
    if kind == "int4":
        try:
            return Int4(*heads, dtype)
        except ValueError as error:
            raise InputError(f"an INT4 cache: {error}", "choose fp8 or auto", code="KV-HEAD") from None
    known = [scale for scale in weights.kv_scales if scale is not None]
    if len(known) < len(weights.layers):
        if kind == "int8":
            raise InputError(
                "an INT8 cache needs scales, and the checkpoint holds none",
                "convert it with --kv-cache int8 and a calibration, or choose fp8, int4 or auto",
                code="KV-SCALES",
            )
        return Fp8(*heads, [Scale(1.0, 1.0)] * len(weights.layers), dtype)
    stretch = _LARGEST.get(stored, _LARGEST[kind]) / _LARGEST[kind]
    scales = [Scale(scale.key * stretch, scale.value * stretch) for scale in known]
    return Fp8(*heads, scales, dtype) if kind == "fp8" else Int8(*heads, scales, dtype)
