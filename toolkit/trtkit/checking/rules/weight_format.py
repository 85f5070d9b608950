"""Rules about the weight format of one model: what its shapes and its exporter allow. Knows no GPU (rules/gpu)."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from typing import cast

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checkpoints.weight_only_layout import TILE_ROWS
from trtkit.conversion.modelopt_limits import (
    CheckpointFormat,
    ModeloptOptions,
    ModeloptQuantization,
    refuse_impossible,
)
from trtkit.conversion.options import HF_QUANTIZATIONS, MODELOPT_QUANTIZATIONS
from trtkit.conversion.parallelism import why_not_tensor_parallel
from trtkit.errors import CheckpointError
from trtkit.planning.split import Split
from trtkit.planning.tensors import rank_tensors


def _tiles(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend == "llmapi":
        return
    for role, model, spec in deployment.known():
        split = Split(model.tensor_parallel, model.pipeline_parallel, model.expert_parallel)
        divisible = why_not_tensor_parallel(spec, split.tensor, split.expert) is None
        if not model.quantization.endswith("weight_only") or not divisible:
            continue
        linear = (tensor for tensor in rank_tensors(spec, split, 0) if tensor.kind in ("linear", "expert"))
        odd = next((tensor for tensor in linear if any(size % TILE_ROWS for size in tensor.shape[-2:])), None)
        if odd is not None:
            shape = " x ".join(map(str, odd.shape[-2:]))
            yield hit(f"{role}.quantization", role=role, name=odd.name, shape=shape, tile=TILE_ROWS)


def _not_exported(deployment: Deployment) -> Iterable[Hit]:
    """What nvidia-modelopt does not export; unknown without transformers, whose release decides some of it."""
    form: CheckpointFormat = "hf" if deployment.backend == "llmapi" else "tensorrt_llm"
    made = HF_QUANTIZATIONS if form == "hf" else MODELOPT_QUANTIZATIONS
    for role, model, spec in deployment.known():
        is_exported = model.quantization in MODELOPT_QUANTIZATIONS and model.quantization in made
        if not is_exported or deployment.stored.get(role, "none") != "none":
            continue
        options = ModeloptOptions(
            quantization=cast(ModeloptQuantization, model.quantization),
            tensor_parallel=model.tensor_parallel,
            pipeline_parallel=model.pipeline_parallel,
            format=form,
        )
        try:
            refuse_impossible(spec, options, role)
        except CheckpointError as error:
            key, why = f"{role}.quantization", error.cause
            yield hit(key, role=role, quantization=model.quantization, why=why, fix=error.fix)
        except PackageNotFoundError:
            return


WEIGHT_FORMAT_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="QUANT-TILES",
        severity="error",
        looks_at="YAML",
        when="weight-only INT8 or INT4, and a rank's part of a linear layer is no multiple of the kernels' tiles",
        cause="{name} of the {role} is {shape} per rank; weight-only kernels need multiples of {tile}",
        fix="use a smaller tensor_parallel, or another quantization",
        source="tiles of the weight-only kernels",
        find=_tiles,
        example=hit(
            "target.quantization", role="target", name="transformer.layers.0.mlp.fc.weight", shape="80 x 128", tile=64
        ),
    ),
    Rule(
        code="QUANT-EXPORT",
        severity="error",
        looks_at="YAML",
        when="AWQ, SmoothQuant or NVFP4 of a model or a cut that nvidia-modelopt does not export",
        cause="the {role} cannot be made {quantization}: {why}",
        fix="{fix}",
        source="nvidia-modelopt 0.47, run on every family (docs/conversion-matrix.md)",
        find=_not_exported,
        example=hit(
            "target.quantization",
            role="target",
            quantization="int4_awq",
            why="modelopt's export for TensorRT-LLM has no phi3",
            fix="choose fp8, fp8_rowwise, int8_weight_only or int4_weight_only, which trtkit writes itself",
        ),
    ),
)
