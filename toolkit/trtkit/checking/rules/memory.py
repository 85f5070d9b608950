"""Rules about memory: does the deployment fit on its GPUs. Knows the plan's figures, computes none."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.planning.plan import Plan, PlanInput, make_plan

_GB = 10**9


def _plan(deployment: Deployment) -> Plan | None:
    """The plan of a deployment on GPUs whose models are all known."""
    known = deployment.specs.keys() >= deployment.config.models.keys()
    if deployment.gpu is None or deployment.backend == "reference" or not known:
        return None
    return make_plan(deployment.config, deployment.specs, PlanInput(gpu=deployment.gpu, memory_bytes=None))


def _does_not_fit(deployment: Deployment) -> Iterable[Hit]:
    plan = _plan(deployment)
    if plan is not None and plan.fit is not None and plan.fit.sequences == 0:
        assert deployment.gpu is not None
        weights = ", ".join(f"{role} {_gb(max(model.rank_bytes))}" for role, model in plan.models.items())
        yield hit("gpu", gpu=deployment.gpu.name, weights=weights, shortfall=_gb(plan.fit.shortfall_bytes))


def _too_few_sequences(deployment: Deployment) -> Iterable[Hit]:
    plan = _plan(deployment)
    wanted = deployment.config.limits.max_batch_size
    if plan is not None and plan.fit is not None and 0 < plan.fit.sequences < wanted:
        yield hit("limits.max_batch_size", wanted=wanted, sequences=plan.fit.sequences)


def _gb(number_bytes: int) -> str:
    return f"{number_bytes / _GB:.1f} GB"


MEMORY_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="MEMORY-FIT",
        severity="error",
        looks_at="YAML",
        when="weights and buffers leave no room for one of the longest sequences on the fullest GPU of a model",
        cause="a {gpu} lacks {shortfall} for one sequence; weights per GPU: {weights}",
        fix="spread the target over more GPUs, quantise it, or shorten limits; `trtkit plan` shows the bytes",
        source="trtkit plan; TensorRT-LLM issues #486, #1188",
        find=_does_not_fit,
        example=hit("gpu", gpu="a100-sxm-80gb", shortfall="67.2 GB", weights="target 141.1 GB"),
    ),
    Rule(
        code="MEMORY-BATCH",
        severity="warning",
        looks_at="YAML",
        when="fewer of the longest sequences fit than max_batch_size",
        cause="only {sequences} sequences of full length fit, not {wanted}; more of them wait in the queue",
        fix="lower max_batch_size or limits, or use kv_cache.dtype fp8; `trtkit plan` shows what fits",
        source="trtkit plan",
        find=_too_few_sequences,
        example=hit("limits.max_batch_size", wanted=64, sequences=14),
    ),
)
