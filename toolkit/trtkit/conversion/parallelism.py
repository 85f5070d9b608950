"""Which numbers of ranks a model can be cut over, and why not others. Pure: knows sizes, not weights."""

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.conversion.options import ConversionOptions
from trtkit.errors import CheckpointError

_MOST_RANKS = 64


def check_parallelism(spec: ModelSpec, options: ConversionOptions, where: str) -> None:
    """Raise CheckpointError CKPT-HEADS, CKPT-EXPERTS or CKPT-STAGES when the ranks cannot share the model."""
    reason = why_not_tensor_parallel(spec, options.tensor_parallel, options.expert_parallel)
    if reason is not None:
        legal = legal_tensor_parallel(spec, options.expert_parallel)
        raise CheckpointError(
            f"tensor_parallel {options.tensor_parallel} is impossible: {reason}",
            f"use one of {', '.join(map(str, legal))}" if legal else "use another expert_parallel",
            code="CKPT-HEADS",
            where=where,
        )
    num_experts = spec.moe.num_experts if spec.moe else 0
    if options.expert_parallel > 1 and (not num_experts or num_experts % options.expert_parallel):
        raise CheckpointError(
            f"expert_parallel {options.expert_parallel} cannot share out {num_experts} experts",
            "use a divisor of the number of experts (1 for a model without experts)",
            code="CKPT-EXPERTS",
            where=where,
        )
    if options.pipeline_parallel > spec.num_layers:
        raise CheckpointError(
            f"pipeline_parallel {options.pipeline_parallel} exceeds the {spec.num_layers} layers",
            f"use at most {spec.num_layers}",
            code="CKPT-STAGES",
            where=where,
        )


def legal_tensor_parallel(spec: ModelSpec, expert_parallel: int = 1) -> list[int]:
    """Every tensor_parallel up to 64 that the model allows."""
    ranks = range(expert_parallel, _MOST_RANKS + 1, expert_parallel)
    return [width for width in ranks if why_not_tensor_parallel(spec, width, expert_parallel) is None]


def why_not_tensor_parallel(spec: ModelSpec, ranks: int, expert_parallel: int = 1) -> str | None:
    """The first reason why `ranks` cannot share the model, or None when they can."""
    if spec.num_q_heads % ranks:
        return f"{spec.num_q_heads} attention heads cannot be shared equally"
    if spec.num_kv_heads % ranks and ranks % spec.num_kv_heads:
        return f"{spec.num_kv_heads} key-value heads can be neither shared equally nor repeated equally"
    moe = spec.moe
    if (moe is None or moe.has_dense_layer(spec.num_layers)) and spec.intermediate_size % ranks:
        return f"the intermediate size {spec.intermediate_size} cannot be shared equally"
    if moe is not None and moe.intermediate_size % (ranks // expert_parallel):
        return f"an expert's intermediate size {moe.intermediate_size} cannot be shared equally"
    if moe is not None and moe.shared_intermediate_size % ranks:
        return f"the shared expert's intermediate size {moe.shared_intermediate_size} cannot be shared equally"
    return None
