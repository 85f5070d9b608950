"""RopeSpec: how positions turn, read from a Hugging Face config in its old and its new form. Knows no tensors.

Old form (transformers 4): rope_theta, and rope_scaling with "type" or "rope_type". New form (transformers 5): one
object rope_parameters, for Gemma 3 one per kind of layer.
"""

import json
from dataclasses import dataclass
from typing import Any

from trtkit.checkpoints.families import Family
from trtkit.checkpoints.json_fields import JsonFields
from trtkit.checkpoints.quoted import quoted
from trtkit.errors import CheckpointError

# kind -> the keys it cannot do without (transformers, modeling_rope_utils).
_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
}
_ALIASES = {"su": "longrope"}
_NOT_SCALING = ("rope_theta", "partial_rotary_factor")
_LISTS = ("short_factor", "long_factor")
# What else a kind may have; null counts as absent.
_POSITIVE = (
    *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "short_mscale", "long_mscale"),
)
_LARGEST = 1e30


@dataclass(frozen=True)
class RopeSpec:
    """theta, the part of each head that turns, and the scaling object as the config gives it (None: plain rope).

    scaling always has "rope_type"; local_theta is the base of Gemma 3's sliding layers.
    """

    theta: float
    partial_rotary_factor: float
    scaling: dict[str, Any] | None
    local_theta: float | None


def read_rope(fields: JsonFields, family: Family, head_dim: int) -> RopeSpec:
    """Parse either form.

    Raises CheckpointError CKPT-ROPE for an unknown kind, a missing factor, values no rotation has, and a scaling of
    sliding layers, for which TensorRT-LLM's config has a base (rope_local_base_freq) and nothing else.
    """
    parameters = fields.object("rope_parameters")
    local = None
    if parameters is not None and (parameters.has("full_attention") or parameters.has("sliding_attention")):
        local = parameters.object("sliding_attention")
        # transformers takes an absent kind of layer as plain.
        parameters = parameters.object("full_attention") or JsonFields({}, parameters.where)
    source = parameters if parameters is not None else fields
    scaling = parameters if parameters is not None else fields.object("rope_scaling")
    partial = source.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    spec = RopeSpec(
        theta=source.number("rope_theta", family.rope_theta),
        partial_rotary_factor=partial,
        scaling=_scaling(scaling, _rotary_dim(fields, head_dim, partial) // 2),
        local_theta=_local_theta(fields, local, family),
    )
    if local is not None:
        _refuse_local(local, spec)
    return spec


def _rotary_dim(fields: JsonFields, head_dim: int, partial: float) -> int:
    """Elements of a head that turn; pairs do, so their number is even."""
    dim = int(head_dim * partial) if partial <= 1 else 0
    if dim < 2 or dim % 2:
        what = f"partial_rotary_factor {partial:g} turns no pairs of a head of {head_dim} elements"
        raise _error(fields, what)
    return dim


def _refuse_local(local: JsonFields, spec: RopeSpec) -> None:
    """What sliding layers have of their own, besides the base of a family that has two, would be lost."""
    partial = local.number("partial_rotary_factor", spec.partial_rotary_factor)
    is_carried = spec.local_theta is not None or local.number("rope_theta", spec.theta) == spec.theta
    if _kind(local) != "default" or partial != spec.partial_rotary_factor or not is_carried:
        raise _error(local, "sliding layers have a rope of their own, which TensorRT-LLM has no place for")


def _local_theta(fields: JsonFields, local: JsonFields | None, family: Family) -> float | None:
    if family.name != "gemma3":
        return None
    return (local or fields).number("rope_theta" if local else "rope_local_base_freq", 10000.0)


def _kind(fields: JsonFields) -> str:
    """The kind under either key, "default" for plain rope. Raises CKPT-ROPE where there are parameters and no kind."""
    key = next((key for key in ("rope_type", "type") if fields.has(key)), None)
    if key is None:
        stray = sorted(name for name in fields.values if fields.has(name) and name not in _NOT_SCALING)
        if stray:
            raise _error(fields, f"rope has {quoted(stray[0])} and no rope_type that says what it is for")
        return "default"
    kind = fields.text(key)
    return _ALIASES.get(kind, kind)


def _scaling(fields: JsonFields | None, num_pairs: int) -> dict[str, Any] | None:
    kind = "default" if fields is None else _kind(fields)
    if fields is None or kind == "default":
        return None
    if kind not in _NEEDS:
        raise CheckpointError(
            f"rope scaling of the kind {quoted(kind)} is unknown",
            f"trtkit converts {', '.join(sorted(_NEEDS))}; without the right rope the model would repeat itself",
            code="CKPT-ROPE",
            where=fields.where,
        )
    _check_values(fields, kind, num_pairs)
    kept = {key: value for key, value in fields.values.items() if key not in (*_NOT_SCALING, "type")}
    return {**kept, "rope_type": kind}


def _check_values(fields: JsonFields, kind: str, num_pairs: int) -> None:
    for key in (*_LISTS, *_POSITIVE):
        value = fields.values.get(key)
        if value is None and key not in _NEEDS[kind]:
            continue
        is_list = key in _LISTS
        fine = _is_list(value, num_pairs) if is_list else _is_positive(value)
        if not fine:
            needs = f"a list of {num_pairs} numbers > 0" if is_list else "a number > 0"
            raise _error(fields, f"rope scaling of the kind {kind!r} needs {key}: {needs}, not {quoted(value)}")
    if kind == "llama3" and fields.values["low_freq_factor"] >= fields.values["high_freq_factor"]:
        raise _error(fields, "low_freq_factor should be less than high_freq_factor")
    if not _is_json(fields.values):
        raise _error(fields, f"rope scaling of the kind {kind!r} holds NaN or Infinity, which is no JSON")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(map(_is_positive, value))


def _is_json(values: dict[str, Any]) -> bool:
    try:
        json.dumps(values, allow_nan=False)
    except ValueError:
        return False
    return True


def _error(fields: JsonFields, what: str) -> CheckpointError:
    return CheckpointError(
        what, "compare with the config.json of the original checkpoint", code="CKPT-ROPE", where=fields.where
    )
