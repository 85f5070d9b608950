"""Where two traces part, and whether rounding explains it. Pure: squared errors in, a verdict and a place out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.evaluate.checkpoint.quantization_error import quantization_error
from trtkit.evaluate.oracle.tolerance import MEAN_ROUNDING, UNIT_ROUNDOFF, NumericProfile, unconditioned_state_error

ALLOWANCE = 3.0
"""Times the expected root-mean-square error. The error is a mean over thousands of values, so it hardly scatters; what
is allowed for is that another order of operations rounds elsewhere."""

ATTENTION_TENSORS = (
    "input_layernorm",
    "attention.qkv",
    "attention.q_layernorm",
    "attention.k_layernorm",
    "attention.dense",
)
MLP_TENSORS = (
    "post_layernorm",
    "pre_feedforward_layernorm",
    "mlp.router",
    "mlp.fc",
    "mlp.gate",
    "mlp.proj",
    "mlp.shared_expert.fc",
    "mlp.shared_expert.proj",
    "mlp.shared_expert_gate",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True)
class Point:
    """One place where two traces are compared: after how many layers, and which tensors may lie since the last place.

    Not every family has all of them.
    """

    name: str
    num_layers: float
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class PointDrift:
    """The relative error at a point, the error that rounding explains there, and which tensors come into question."""

    point: Point
    error: float
    tolerance: float

    @property
    def is_explained(self) -> bool:
        """Whether rounding explains the error; not-a-number never is."""
        return self.error <= self.tolerance


def points_of(num_layers: int) -> tuple[Point, ...]:
    """The points of a trace, in order: embedding, then after attention and after the MLP of each layer, the logits."""
    points = [Point("embedding", 0, ("transformer.vocab_embedding",))]
    for layer in range(num_layers):
        prefix = f"transformer.layers.{layer}."
        attention, mlp = (tuple(prefix + name for name in names) for names in (ATTENTION_TENSORS, MLP_TENSORS))
        points.append(Point(f"layer {layer} attention", layer + 0.5, attention))
        points.append(Point(f"layer {layer} mlp", layer + 1, mlp))
    points.append(Point("logits", num_layers, ("transformer.ln_f", "lm_head")))
    return tuple(points)


def expected_errors(probe_errors: Sequence[float], profile: NumericProfile, probe: NumericProfile) -> list[float]:
    """What rounding explains at each point of a deployment, from the same model's errors in another dtype.

    The probe is the oracle in a coarser dtype. Its error at a point, over what depth alone explains there, is the
    conditioning of the model up to that point, which belongs to the weights; the deployment's error is the same
    conditioning times what depth explains in its own dtype.
    """
    points = points_of(profile.num_layers)
    return [
        max(error / _depth_error(probe, point), 1.0) * _depth_error(profile, point)
        for error, point in zip(probe_errors, points, strict=True)
    ]


def judge_drift(
    errors: Sequence[float],
    probe_errors: Sequence[float],
    cache_errors: Sequence[float],
    profile: NumericProfile,
    probe: NumericProfile,
) -> list[PointDrift]:
    """Every point with its error and tolerance.

    cache_errors: what rounding keys and values alone does to the oracle at each point; empty where nothing rounds them.
    """
    expected = expected_errors(probe_errors, profile, probe)
    rounded = cache_errors or [0.0] * len(expected)
    return [
        PointDrift(point, error, ALLOWANCE * math.hypot(usual, coarser))
        for point, error, usual, coarser in zip(points_of(profile.num_layers), errors, expected, rounded, strict=True)
    ]


def first_unexplained(drifts: Sequence[PointDrift]) -> PointDrift | None:
    """Where the fault is: everything before it is right."""
    return next((drift for drift in drifts if not drift.is_explained), None)


def shown(value: float | None, digits: str = ".3g") -> str:
    """A figure as text; None stands for what is no number."""
    return "no number" if value is None else format(value, digits)


def _depth_error(profile: NumericProfile, point: Point) -> float:
    """The state's error after part of the layers; the embedding is a copy, rounded once at most."""
    if not point.num_layers:
        return MEAN_ROUNDING * UNIT_ROUNDOFF[profile.dtype]
    whole = unconditioned_state_error(
        profile.dtype, profile.num_layers, profile.hidden_size, weights_rounded=profile.weights_rounded
    )
    quantized = quantization_error(profile.quantization)
    return math.hypot(whole, quantized) * math.sqrt(point.num_layers / profile.num_layers)
