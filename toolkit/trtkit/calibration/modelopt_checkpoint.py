"""Drives nvidia-modelopt: one checkpoint in, one quantised checkpoint out, in TensorRT-LLM's or Hugging Face's format.

modelopt chooses the scales and packs the weights; trtkit chooses texts and settings, shows progress, and looks at what
came out. The model is loaded whole: this needs its size in memory, unlike the streaming pass. Knows modelopt's API.
"""

import contextlib
import copy
import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers

from trtkit import __version__
from trtkit.artifacts import is_complete, key_of, stage_output
from trtkit.calibration.samples import Sample
from trtkit.calibration.scales import scale_of
from trtkit.checkpoints.digest import checkpoint_digest
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.errors import InputError, MissingToolError
from trtkit.progress import OnProgress, Progress, silent

ModeloptQuantization = Literal["fp8", "int4_awq", "w4a8_awq", "int8_smoothquant", "nvfp4"]
CheckpointFormat = Literal["tensorrt_llm", "hf"]

# trtkit's name -> modelopt's configuration.
_CONFIGS: dict[ModeloptQuantization, str] = {
    "fp8": "FP8_DEFAULT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
}
# Families whose export is tested here -> modelopt's name for the decoder.
_DECODERS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen", "gemma": "gemma"}
_KV_SCALE = re.compile(r"^transformer\.layers\.(\d+)\.attention\.(kv|k|v)_cache_scaling_factor$")
_BLOCK_SIZE = {"int4_awq": 128, "w4a8_awq": 128, "nvfp4": 16}


@dataclass(frozen=True)
class ModeloptOptions:
    """fp8_kv_cache adds calibrated KV scales. dtype is of what stays unquantised."""

    quantization: ModeloptQuantization
    fp8_kv_cache: bool = False
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    format: CheckpointFormat = "tensorrt_llm"
    device: str = "cpu"


def quantize_with_modelopt(
    checkpoint: Path, samples: list[Sample], out: Path, options: ModeloptOptions, on_progress: OnProgress = silent
) -> bool:
    """Quantise into `out`, whole or not at all; false when it was there already for the same inputs.

    Raises MissingToolError PACKAGE without modelopt; InputError CALIB-MODELOPT for a family or width it cannot do.
    """
    spec = read_model_spec(checkpoint)
    _refuse_impossible(spec, options)
    inputs = {"trtkit": __version__, "modelopt": True, "checkpoint": checkpoint_digest(checkpoint, on_progress)}
    key = key_of({**inputs, "options": repr(options), "samples": [sample.token_ids for sample in samples]})
    if is_complete(out, key):
        return False
    with stage_output(out, stage="modelopt", key=key) as scratch, _quiet():
        _quantize(checkpoint, spec, samples, scratch, options, on_progress)
    return True


def quantized_model(checkpoint: Path, samples: list[Sample], options: ModeloptOptions, on_progress: OnProgress) -> Any:
    """The model with modelopt's quantizers calibrated on the samples."""
    import modelopt.torch.quantization as mtq

    auto: Any = transformers.AutoModelForCausalLM
    dtype = getattr(torch, options.dtype)
    model = auto.from_pretrained(checkpoint, dtype=dtype, local_files_only=True, use_safetensors=True)
    config = copy.deepcopy(getattr(mtq, _CONFIGS[options.quantization]))
    if options.fp8_kv_cache:
        config["quant_cfg"] += copy.deepcopy(mtq.FP8_KV_CFG["quant_cfg"])
    return mtq.quantize(model.eval().to(options.device), config, _loop(samples, options.device, on_progress))


def _quantize(
    checkpoint: Path,
    spec: ModelSpec,
    samples: list[Sample],
    out: Path,
    options: ModeloptOptions,
    on_progress: OnProgress,
) -> None:
    import modelopt.torch.export as export

    model = quantized_model(checkpoint, samples, options, on_progress)
    dtype = getattr(torch, options.dtype)
    with torch.inference_mode():
        if options.format == "hf":
            export.export_hf_checkpoint(model, dtype=dtype, export_dir=out)
            return
        export.export_tensorrt_llm_checkpoint(
            model,
            _DECODERS[spec.family],
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
        k, v = (scale_of(float(q.amax), "fp8") for q in (module.k_bmm_quantizer, module.v_bmm_quantizer))
        scales.append({"k": k, "v": v, "kv": max(k, v)})
    return scales


def _loop(samples: list[Sample], device: str, on_progress: OnProgress) -> Callable[[Any], None]:
    """modelopt calls this with the model, AWQ twice; the bar starts anew each time."""

    def run(model: Any) -> None:
        for number, sample in enumerate(samples, 1):
            with torch.inference_mode():
                model(input_ids=torch.tensor([sample.token_ids], device=device))
            on_progress(Progress("modelopt", number, len(samples), "samples"))

    return run


def _refuse_impossible(spec: ModelSpec, options: ModeloptOptions) -> None:
    if importlib.util.find_spec("modelopt") is None:
        raise MissingToolError(
            "this needs the package nvidia-modelopt", "pip install 'trtkit[quantize]'", code="PACKAGE"
        )
    if spec.family not in _DECODERS:
        raise _impossible(
            f"the export of {spec.family} through modelopt is not tested", f"families that are: {', '.join(_DECODERS)}"
        )
    if spec.num_layers % options.pipeline_parallel:
        raise _impossible(
            f"modelopt spreads {spec.num_layers} layers over {options.pipeline_parallel} stages only evenly",
            "choose a pipeline_parallel that divides the layers",
        )
    block = _BLOCK_SIZE.get(options.quantization, 1)
    for name in ("hidden_size", "intermediate_size"):
        if getattr(spec, name) % block:
            raise _impossible(
                f"{options.quantization} needs {name} in multiples of {block}, and it is {getattr(spec, name)}",
                "choose fp8 or int8_smoothquant",
            )


def _impossible(cause: str, fix: str) -> InputError:
    return InputError(cause, fix, code="CALIB-MODELOPT")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """modelopt prints to stdout, where results go, and warns of every transformers it was not released with."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", module=r"modelopt\..*")
        warnings.filterwarnings("ignore", message=".*is not tested with current version of modelopt.*")
        yield
