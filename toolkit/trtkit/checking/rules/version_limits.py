"""What this version of trtkit does not execute or serve yet, so that nothing written in a YAML is ignored."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit


def _limits(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend != "reference":
        return
    yield from _models(deployment)
    yield from _features(deployment)


def _models(deployment: Deployment) -> Iterable[Hit]:
    for role, model in deployment.config.models.items():
        if model.quantization != "none":
            yield hit(f"{role}.quantization", what=f"{model.quantization} weights", instead="none")
        for key in ("tensor_parallel", "pipeline_parallel", "expert_parallel"):
            if getattr(model, key) > 1:
                yield hit(f"{role}.{key}", what=f"{key} {getattr(model, key)}", instead="1")


def _features(deployment: Deployment) -> Iterable[Hit]:
    config, speculation = deployment.config, deployment.speculation
    if config.kv_cache.dtype != "auto":
        yield hit("kv_cache.dtype", what=f"an {config.kv_cache.dtype} KV cache", instead="auto")
    if deployment.engine_sinks:
        yield hit("attention_sinks.strategy", what="attention sinks inside of the engine", instead="rolling")
    if speculation is not None and speculation.acceptance == "logits":
        yield hit("speculation.acceptance", what="acceptance by logits", instead="token")


def _unserved(deployment: Deployment) -> Iterable[Hit]:
    """What the Triton models of this version leave out on engines; the reference backend has its own rule."""
    speculation = deployment.speculation
    if speculation is not None and speculation.acceptance == "logits" and deployment.backend == "engine":
        yield hit("speculation.acceptance", what="acceptance by logits", instead="acceptance: token")


LIMIT_OF_VERSION_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="REFERENCE-LIMIT",
        severity="error",
        looks_at="YAML",
        when="the reference backend of this version does not execute what the YAML asks for",
        cause="the reference backend does not execute {what} yet",
        fix="write {instead}, or backend: engine",
        source="trtkit's reference engine",
        find=_limits,
        example=hit("kv_cache.dtype", what="an fp8 KV cache", instead="auto"),
    ),
    Rule(
        code="SERVING-LIMIT",
        severity="error",
        looks_at="YAML",
        when="the Triton models of this version do not serve what the YAML asks for",
        cause="trtkit's Triton models do not serve {what} yet",
        fix="write {instead}",
        source="trtkit's draft-target model",
        find=_unserved,
        example=hit("speculation.acceptance", what="acceptance by logits", instead="acceptance: token"),
    ),
)
