"""ConversionPlan: everything that is decided before the first byte is written. Opens headers only, never data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
        """Scale tensors of the source for things that the converted checkpoint does not quantise."""
        if self.scales is None:
            return []
        inputs = (name for name in self.scales.names["input"] if not self._takes_input_of(name.rpartition(".")[0]))
        return sorted([*self.scales.names["other"], *inputs])

    @property
    def dropped_scales(self) -> list[str]:
        """KV scales of the source that stay behind because no KV cache of their kind is asked for."""
        if self.scales is None or self.options.kv_cache_dtype == "fp8":
            return []
        return sorted(self.scales.names["kv"])

    def _takes_input_of(self, module: str) -> bool:
        """Whether a linear layer of the source becomes one with a static activation scale."""
        if self.options.quantization != "fp8" or self.scales is None:
            return False
        return module in self._linear_modules and (not self.scales.weights or module in self.scales.weights)

    @cached_property
    def _linear_modules(self) -> frozenset[str]:
        """The checkpoint's names of the layers behind linear and expert targets."""
        linear = (target for rank in self.targets for target in rank if target.kind in ("linear", "expert"))
        sources = {piece.source for target in linear for piece in target.slices}
        return frozenset(self.names[source].removesuffix(".weight") for source in sources)

    def _scaled(self, modules: Mapping[str, str]) -> set[str]:
        """The sources whose module has a weight scale."""
        return {source for source, module in modules.items() if self.scales and module in self.scales.weights}

    @property
    def dequantized(self) -> dict[str, float]:
        """Rule's source name -> scale, of FP8 tensors that TensorRT-LLM keeps in 16 bits (head, embedding, router).

        Raises CheckpointError CKPT-QUANT for one with a scale per channel.
        """
        if self.scales is None:
            return {}
        modules = {source: stored.removesuffix(".weight") for source, stored in self.names.items()}
        held = {source: self.scales.weights.get(module) for source, module in modules.items()}
        found = {
            source: s for source, s in held.items() if s is not None and modules[source] not in self._linear_modules
        }
        for source, values in found.items():
            if values.size > 1:
                raise CheckpointError(
                    f"{self.names[source]} is FP8 with a scale per channel, and TensorRT-LLM keeps it in 16 bits",
                    "quantise the checkpoint again without this layer",
                    code="CKPT-QUANT",
                    where=str(self.weights[self.names[source]].file),
                )
        return {source: float(values[0]) for source, values in found.items()}


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
