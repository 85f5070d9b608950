"""What this version of trtkit does not execute or serve yet, so that nothing written in a YAML is ignored."""

from collections.abc import Iterable, Iterator

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checkpoints.model_spec import ModelSpec
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
    if deployment.engine_sinks:
        yield hit(_SINKS, what="attention sinks inside of the engine", instead="rolling")


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
        example=hit(_SINKS, what="attention sinks inside of the engine", instead="rolling"),
    ),
)
