"""What this version of trtkit does not execute or serve yet, so that nothing written in a YAML is ignored."""

from collections.abc import Iterable, Iterator

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.reference.kv_cache.options import INT4_GROUP
from trtkit.reference.model.families import ACTIVATIONS, ARCHITECTURES
from trtkit.reference.model.unsupported import ROPE_KINDS

_SINKS = "attention_sinks.strategy"


def _limits(deployment: Deployment) -> Iterable[Hit]:
    if deployment.backend != "reference":
        return
    yield from _models(deployment)
    yield from _features(deployment)


def _models(deployment: Deployment) -> Iterable[Hit]:
    for role, spec in deployment.specs.items():
        for what in unexecuted(spec):
            yield hit(f"{role}.checkpoint", what=what, instead="the path of another checkpoint")


def unexecuted(spec: ModelSpec) -> Iterator[str]:
    """What the reference engine does not compute of a model, in words."""
    if spec.architecture not in ARCHITECTURES:
        yield spec.architecture
    if spec.hidden_act not in ACTIVATIONS:
        yield f"the activation {spec.hidden_act}"
    kind = (spec.rope_scaling or {}).get("rope_type", "default")
    if kind not in ROPE_KINDS:
        yield f"rope of kind {kind}"


def _features(deployment: Deployment) -> Iterable[Hit]:
    for role, spec in deployment.specs.items():
        if deployment.config.kv_cache.dtype == "int4" and spec.head_dim % min(INT4_GROUP, spec.head_dim):
            what = f"an INT4 KV cache for heads of {spec.head_dim}, which are no multiple of {INT4_GROUP},"
            yield hit("kv_cache.dtype", what=what, instead="auto")
        for what in _hinders_sinks(spec) if deployment.engine_sinks else ():
            sinks = f"attention sinks inside of the engine for the {role}, which has {what},"
            yield hit(_SINKS, what=sinks, instead="rolling")


def _hinders_sinks(spec: ModelSpec) -> Iterator[str]:
    """What of a model does not go on without end, in words."""
    family = ARCHITECTURES.get(spec.architecture)
    if family is not None and family.learns_positions:
        yield "learned positions"
    if (spec.rope_scaling or {}).get("rope_type") == "dynamic":
        yield "rope scaling that grows with the text"
    if spec.sliding_window is not None and any(spec.layer_is_sliding):
        yield "sliding windows of its own"
    if spec.extra.get("attn_logit_softcapping"):
        yield "capped attention scores"


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
        example=hit("target.checkpoint", what="the activation relu", instead="the path of another checkpoint"),
    ),
)
