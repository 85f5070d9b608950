"""Drives nvidia-modelopt: token ids in, a quantised checkpoint out, in TensorRT-LLM's or Hugging Face's format.

modelopt chooses the scales and packs the weights; trtkit chooses the settings, shows progress, and mends the KV scales.
The model is loaded whole: this needs its size in memory, unlike the streaming pass. The only place that knows
modelopt's API; modelopt_limits.py knows what it cannot do.
"""

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.conversion.casting import E4M3_MAX
from trtkit.conversion.modelopt_limits import DECODERS, ModeloptOptions, ModeloptQuantization
from trtkit.errors import CheckpointError
from trtkit.progress import OnProgress, Progress

# trtkit's name -> modelopt's configuration.
_CONFIGS: dict[ModeloptQuantization, str] = {
    "fp8": "FP8_DEFAULT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
}
_KV_SCALE = re.compile(r"^transformer\.layers\.(\d+)\.attention\.(kv|k|v)_cache_scaling_factor$")
# What it raises for models and layers that it was not written for.
_ITS_ERRORS = (
    NotImplementedError,
    AssertionError,
    TypeError,
    KeyError,
    AttributeError,
    ValueError,
    RuntimeError,
    ZeroDivisionError,
)


def export_with_modelopt(
    checkpoint: Path,
    samples: Sequence[Sequence[int]],
    out: Path,
    options: ModeloptOptions,
    on_progress: OnProgress,
) -> None:
    """Quantise `checkpoint`, calibrated on the token ids of `samples`, into the existing directory `out`.

    The caller has asked refuse_impossible. Raises CheckpointError CONV-MODELOPT when modelopt fails all the same.
    """
    try:
        with _quiet():
            model = quantized_model(checkpoint, samples, options, on_progress)
            _export(model, read_model_spec(checkpoint).family, out, options)
    except _ITS_ERRORS as error:
        raise CheckpointError(
            f"modelopt does not export it as {options.quantization}: {(str(error) or type(error).__name__)[:200]}",
            "choose fp8, int8_weight_only or int4_weight_only, which trtkit writes itself (docs/conversion.md)",
            code="CONV-MODELOPT",
            where=str(checkpoint),
        ) from error


def quantized_model(
    checkpoint: Path, samples: Sequence[Sequence[int]], options: ModeloptOptions, on_progress: OnProgress
) -> Any:
    """The model with modelopt's quantizers calibrated on the samples."""
    import modelopt.torch.quantization as mtq
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    dtype = getattr(torch, options.dtype)
    model = auto.from_pretrained(checkpoint, dtype=dtype, local_files_only=True, use_safetensors=True)
    config = copy.deepcopy(getattr(mtq, _CONFIGS[options.quantization]))
    if options.fp8_kv_cache:
        config["quant_cfg"] += copy.deepcopy(mtq.FP8_KV_CFG["quant_cfg"])
    return mtq.quantize(model.eval().to(options.device), config, _loop(samples, options.device, on_progress))


def _export(model: Any, family: str, out: Path, options: ModeloptOptions) -> None:
    import modelopt.torch.export as export
    import torch

    dtype = getattr(torch, options.dtype)
    with torch.inference_mode():
        if options.format == "hf":
            export.export_hf_checkpoint(model, dtype=dtype, export_dir=out)
            return
        export.export_tensorrt_llm_checkpoint(
            model,
            DECODERS[family],
            dtype,
            export_dir=out,
            inference_tensor_parallel=options.tensor_parallel,
            inference_pipeline_parallel=options.pipeline_parallel,
        )
    if options.fp8_kv_cache:
        write_kv_scales(out, options, _measured_scales(model))


def write_kv_scales(out: Path, options: ModeloptOptions, scales: Sequence[Mapping[str, float]]) -> None:
    """Put the measured scales (of each layer, by "k", "v" and "kv") in the place of those in the rank files.

    modelopt's export to TensorRT-LLM raises every FP8 KV scale to at least 1.0, which throws the calibration away:
    almost all measured scales are far smaller. Layers are numbered within their pipeline stage.
    """
    stages = np.array_split(np.arange(len(scales)), options.pipeline_parallel)
    for path in out.glob("rank*.safetensors"):
        layers = stages[int(path.stem.removeprefix("rank")) // options.tensor_parallel]
        with path.open("r+b") as file:
            for tensor in read_header(path):
                match = _KV_SCALE.match(tensor.name)
                if match is not None:
                    file.seek(tensor.start)
                    scale = scales[layers[int(match.group(1))]][match.group(2)]
                    file.write(np.float32(scale).tobytes())


def _measured_scales(model: Any) -> list[dict[str, float]]:
    """amax / 448 of every layer's keys, values, and both, from modelopt's own quantizers."""
    attentions = [module for module in model.modules() if hasattr(module, "k_bmm_quantizer")]
    scales = []
    for module in attentions:
        k, v = (float(quantizer.amax) / E4M3_MAX for quantizer in (module.k_bmm_quantizer, module.v_bmm_quantizer))
        scales.append({"k": k, "v": v, "kv": max(k, v)})
    return scales


def _loop(samples: Sequence[Sequence[int]], device: str, on_progress: OnProgress) -> Callable[[Any], None]:
    """modelopt calls this with the model, AWQ twice; the bar starts anew each time."""
    import torch

    def run(model: Any) -> None:
        for number, ids in enumerate(samples, 1):
            with torch.inference_mode():
                model(input_ids=torch.tensor([list(ids)], device=device))
            on_progress(Progress("modelopt", number, len(samples), "samples"))

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """modelopt prints to stdout, where results go, and warns of every transformers it was not released with."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
