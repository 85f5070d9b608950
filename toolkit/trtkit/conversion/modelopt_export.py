"""INT4-AWQ, W4A8-AWQ, SmoothQuant and NVFP4 through nvidia-modelopt, which calibrates and writes the checkpoint.

Knows how modelopt is called and what it refuses; the algorithms are modelopt's. It holds the whole model in memory and
runs on a CPU; expect minutes per billion parameters.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trtkit.conversion.checksum import crc32_of
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.rank_writer import WrittenFile
from trtkit.errors import CheckpointError, InputError, MissingToolError
from trtkit.findings import Finding
from trtkit.progress import OnProgress, Progress

# Our name -> the configuration's name in modelopt.torch.quantization.
CONFIGURATIONS = {
    "int4_awq": "INT4_AWQ_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
}
_CALIBRATION_TOKENS = 64
_CALIBRATION_SEQUENCES = 8
_MOST_TOKENS = 512


def export_with_modelopt(
    source: Path,
    out: Path,
    options: ConversionOptions,
    sequences: Sequence[Sequence[int]] | None,
    on_progress: OnProgress,
) -> list[WrittenFile]:
    """Quantise the checkpoint and write config.json and rank files into `out`.

    sequences: token ids to calibrate on; None takes ids spread over the vocabulary, whose scales suit no real text.
    Raises MissingToolError without modelopt, CheckpointError CONV-MODELOPT for a model
    that modelopt does not export, InputError CONV-CALIBRATION for a KV cache other than FP8.
    """
    modelopt = _load_modelopt()
    if options.kv_cache_dtype not in ("auto", "fp8"):
        raise InputError(
            f"modelopt exports no {options.kv_cache_dtype} KV cache here",
            "use --kv-cache auto or fp8 with this quantization",
            code="CONV-CALIBRATION",
        )
    model, dtype = _load_model(source, options)
    configuration = _configuration(modelopt, options)
    batches = sequences or _spread_ids(model.config.vocab_size)

    def calibrate(module: Callable[..., Any]) -> None:
        import torch

        for done, ids in enumerate(batches, start=1):
            module(torch.tensor([list(ids)]))
            on_progress(Progress("calibrate", done, len(batches), "sequences"))

    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            _quantize_and_export(modelopt, (model, configuration, calibrate), dtype, out, options)
    except (
        NotImplementedError,
        AssertionError,
        TypeError,
        KeyError,
        AttributeError,
        ValueError,
        RuntimeError,
    ) as error:
        raise CheckpointError(
            f"modelopt does not export it as {options.quantization}: {(str(error) or type(error).__name__)[:200]}",
            "choose fp8, int8_weight_only or int4_weight_only, which trtkit writes itself (docs/conversion.md)",
            code="CONV-MODELOPT",
            where=str(source),
        ) from error
    return _written(out)


def read_sequences(texts: Path, source: Path) -> list[list[int]]:
    """The lines of `texts` as token ids of the checkpoint's tokenizer, 512 at most each.

    Raises InputError CONV-CALIBRATION when a file is missing, or there is no text.
    """
    from tokenizers import Tokenizer

    tokenizer_file = source / "tokenizer.json"
    missing = next((file for file in (texts, tokenizer_file) if not file.is_file()), None)
    if missing is not None:
        raise InputError(f"{missing} is missing", "give --calibration-text a text file", code="CONV-CALIBRATION")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    lines = (line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip())
    sequences = [tokenizer.encode(line).ids[:_MOST_TOKENS] for line in lines]
    if not any(sequences):
        raise InputError(f"{texts} holds no text", "write one text per line", code="CONV-CALIBRATION")
    return [ids for ids in sequences if ids]


def synthetic_calibration(source: Path) -> Finding:
    """The warning that no text was calibrated on."""
    return Finding(
        "CONV-SYNTHETIC-CALIBRATION",
        "warning",
        str(source),
        "modelopt calibrated on token ids that form no text, so its scales suit no real prompt",
        "pass texts with --calibration-text, one per line",
    )


def _load_modelopt() -> Any:
    try:
        import modelopt.torch.export
        import modelopt.torch.quantization
    except ImportError as error:
        raise MissingToolError(
            f"this quantization is done by nvidia-modelopt, and {error.name} is not installed",
            "pip install 'trtkit[quantize]'",
            code="CONV-PACKAGE",
        ) from None
    return modelopt.torch


def _load_model(source: Path, options: ConversionOptions) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, "bfloat16" if options.dtype == "auto" else options.dtype)
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype), dtype


def _configuration(modelopt: Any, options: ConversionOptions) -> Any:
    """modelopt's configuration of the algorithm, with its FP8 KV cache on top when asked for."""
    quantization = modelopt.quantization
    configuration = getattr(quantization, CONFIGURATIONS[options.quantization])
    if options.kv_cache_dtype != "fp8":
        return configuration
    merged = quantization.utils.update_quant_cfg_with_kv_cache_quant(
        configuration, quantization.FP8_KV_CFG["quant_cfg"]
    )
    return merged


def _quantize_and_export(
    modelopt: Any, work: tuple[Any, Any, Any], dtype: Any, out: Path, options: ConversionOptions
) -> None:
    import torch

    model, configuration, calibrate = work
    with torch.inference_mode():
        modelopt.quantization.quantize(model, configuration, forward_loop=calibrate)
        modelopt.export.export_tensorrt_llm_checkpoint(
            model,
            modelopt.export.model_utils.get_model_type(model),
            dtype,
            export_dir=str(out),
            inference_tensor_parallel=options.tensor_parallel,
            inference_pipeline_parallel=options.pipeline_parallel,
        )


def _spread_ids(vocab_size: int) -> list[list[int]]:
    total = _CALIBRATION_SEQUENCES * _CALIBRATION_TOKENS
    ids = [(index * 7919) % vocab_size for index in range(total)]
    return [ids[first : first + _CALIBRATION_TOKENS] for first in range(0, total, _CALIBRATION_TOKENS)]


def _written(out: Path) -> list[WrittenFile]:
    """The rank files there are, with checksums; a config without a quantisation means modelopt did not do its work."""
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    if not config["quantization"].get("quant_algo"):
        raise ValueError("the exported config names no quantisation")
    ranks = sorted(out.glob("rank*.safetensors"), key=lambda path: (len(path.name), path.name))
    return [WrittenFile(path.name, path.stat().st_size, crc32_of(path), skipped=False) for path in ranks]
