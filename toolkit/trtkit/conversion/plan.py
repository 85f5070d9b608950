"""ConversionPlan: everything that is decided before the first byte is written. Opens headers only, never data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.checkpoints.stored_tensor import StoredTensor
from trtkit.checkpoints.weights import open_weights
from trtkit.conversion.layout import RankLayout, Target, all_ranks, rules_for
from trtkit.conversion.modelopt_limits import ModeloptOptions, ModeloptQuantization, refuse_impossible, refuse_missing
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS, ConversionOptions, Dtype
from trtkit.conversion.parallelism import check_parallelism
from trtkit.conversion.source_check import resolve_names
from trtkit.conversion.source_scales import SourceScales, read_scales
from trtkit.conversion.weight_maps import WEIGHT_MAPS
from trtkit.errors import CheckpointError, InputError


@dataclass(frozen=True)
class ConversionPlan:
    """A checkpoint that was proven whole, and the tensors of every rank.

    options.dtype is resolved; names maps the rules' source names to stored ones; targets[rank] are in file order;
    scales are those of a source that is quantised already.
    """

    spec: ModelSpec
    options: ConversionOptions
    weights: Mapping[str, StoredTensor]
    names: Mapping[str, str]
    targets: Sequence[Sequence[Target]]
    scales: SourceScales | None = None

    @property
    def homeless_scales(self) -> list[str]:
        """Scale tensors of the source that no TensorRT-LLM checkpoint has a place for."""
        return sorted(self.scales.names["other"]) if self.scales is not None else []

    @property
    def dropped_scales(self) -> list[str]:
        """Scale tensors of the source that no tensor converted with these options takes."""
        if self.scales is None:
            return []
        kept = {"weight", "input", "other"} if self.scales.weights else {"other"}
        kept |= {"kv"} if self.options.kv_cache_dtype == "fp8" else set()
        return sorted(name for group, names in self.scales.names.items() if group not in kept for name in names)


def plan_conversion(source: Path, options: ConversionOptions) -> ConversionPlan:
    """Read config.json and the headers of `source`, and decide every tensor of every rank.

    Raises CheckpointError for anything that makes the conversion impossible (docs/conversion.md lists the codes).
    """
    spec = read_model_spec(source)
    weights = open_weights(source)
    names = resolve_names(spec, WEIGHT_MAPS[spec.family], weights)
    check_parallelism(spec, options, str(source / "config.json"))
    resolved = replace(options, dtype=_dtype(spec, options, weights))
    if options.pad_vocab_to is not None and options.pad_vocab_to < spec.vocab_size:
        raise InputError(
            f"the vocabulary has {spec.vocab_size} entries, more than the {options.pad_vocab_to} to pad it to",
            "give the vocabulary size of the larger model",
            code="CONV-OPTION",
        )
    if resolved.quantization in MODELOPT_QUANTIZATIONS:
        _check_modelopt(spec, resolved, source)
    rules = rules_for(spec, WEIGHT_MAPS[spec.family])
    targets = [list(RankLayout(spec, rules, rank).targets()) for rank in all_ranks(resolved)]
    scales = read_scales(weights, weights)
    _check_quantized(scales, resolved, source)
    return ConversionPlan(spec, resolved, weights, names, targets, scales)


def modelopt_options(options: ConversionOptions) -> ModeloptOptions:
    """What modelopt is asked for; options.dtype must be resolved."""
    return ModeloptOptions(
        cast(ModeloptQuantization, options.quantization),
        options.kv_cache_dtype == "fp8",
        options.dtype,
        options.tensor_parallel,
        options.pipeline_parallel,
        options.output_format,
    )


def _check_modelopt(spec: ModelSpec, options: ConversionOptions, source: Path) -> None:
    """Raise MissingToolError without modelopt, CheckpointError CONV-MODELOPT, InputError CONV-CALIBRATION."""
    refuse_missing()
    refuse_impossible(spec, modelopt_options(options), str(source))
    if options.expert_parallel > 1:
        raise CheckpointError(
            "modelopt cuts every expert over the ranks and spreads none of them",
            "use --ep 1 with this quantization",
            code="CONV-MODELOPT",
            where=str(source),
        )
    if not options.calibration_ids:
        raise InputError(
            f"{options.quantization} is calibrated while it is written, and there is no text to calibrate on",
            "pass texts with --calibration-text",
            code="CONV-CALIBRATION",
        )


def _check_quantized(scales: SourceScales, options: ConversionOptions, source: Path) -> None:
    """FP8 weights stay what they are: the options must name their format. Raises CheckpointError CKPT-QUANT."""
    if not scales.weights:
        return
    stored = "fp8_rowwise" if scales.per_channel else "fp8"
    if options.output_format == "hf":
        raise CheckpointError(
            f"its weights are stored as {stored} in Hugging Face's format already",
            "serve it as it is, or convert the unquantised checkpoint",
            code="CKPT-QUANT",
            where=str(source),
        )
    if options.quantization != stored:
        raise CheckpointError(
            f"its weights are stored as {stored}, and the conversion asks for {options.quantization}",
            f"use --quantization {stored}, or convert the unquantised checkpoint",
            code="CKPT-QUANT",
            where=str(source),
        )


def _dtype(spec: ModelSpec, options: ConversionOptions, weights: Mapping[str, StoredTensor]) -> Dtype:
    """The dtype asked for; "auto" is the checkpoint's own, but float16 for float32, as TensorRT-LLM has it.

    In Hugging Face's format "auto" stays: every tensor keeps its own.
    """
    keeps_own = options.output_format == "hf" and options.quantization not in MODELOPT_QUANTIZATIONS
    if options.dtype != "auto" or keeps_own:
        return options.dtype
    stored = spec.dtype or next(iter(weights.values())).dtype
    return "bfloat16" if stored == "bfloat16" else "float16"
