"""RopeSpec: how positions turn, read from a Hugging Face config in its old and its new form. Knows no tensors.

Old form (transformers 4): rope_theta, and rope_scaling with "type" or "rope_type". New form (transformers 5): one
object rope_parameters, for Gemma 3 one per kind of layer.
"""

from dataclasses import dataclass
from typing import Any

from trtkit.checkpoints.families import Family
from trtkit.checkpoints.json_fields import JsonFields
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
    """Parse either form. Raises CheckpointError CKPT-ROPE for an unknown kind or a missing factor."""
    parameters = fields.object("rope_parameters")
    local = None
    if parameters is not None and parameters.has("full_attention"):
        local = parameters.object("sliding_attention")
        parameters = parameters.object("full_attention")
    source = parameters if parameters is not None else fields
    scaling = parameters if parameters is not None else fields.object("rope_scaling")
    partial = source.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    return RopeSpec(
        theta=source.number("rope_theta", family.rope_theta),
        partial_rotary_factor=partial,
        scaling=_scaling(scaling, int(head_dim * partial) // 2),
        local_theta=_local_theta(fields, local, family),
    )


def _local_theta(fields: JsonFields, local: JsonFields | None, family: Family) -> float | None:
    if family.name != "gemma3":
        return None
    return (local or fields).number("rope_theta" if local else "rope_local_base_freq", 10000.0)


def _scaling(fields: JsonFields | None, num_pairs: int) -> dict[str, Any] | None:
    if fields is None:
        return None
    kind = fields.text("rope_type" if fields.has("rope_type") else "type", "default")
    kind = _ALIASES.get(kind, kind)
    if kind == "default":
        return None
    if kind not in _NEEDS:
        raise CheckpointError(
            f"rope scaling of the kind {kind!r} is unknown",
            f"trtkit converts {', '.join(sorted(_NEEDS))}; without the right rope the model would repeat itself",
            code="CKPT-ROPE",
            where=fields.where,
        )
    for key in _NEEDS[kind]:
        _check_factor(fields, kind, key, num_pairs)
    kept = {key: value for key, value in fields.values.items() if key not in (*_NOT_SCALING, "type")}
    return {**kept, "rope_type": kind}


def _check_factor(fields: JsonFields, kind: str, key: str, num_pairs: int) -> None:
    value = fields.values.get(key)
    if key in ("short_factor", "long_factor"):
        numbers = value if isinstance(value, list) else []
        fine = len(numbers) == num_pairs and all(isinstance(n, int | float) and n > 0 for n in numbers)
        needs = f"a list of {num_pairs} numbers > 0"
    else:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30
        needs = "a number > 0"
    if not fine:
        raise CheckpointError(
            f"rope scaling of the kind {kind!r} needs {key}: {needs}",
            "compare with the config.json of the original checkpoint",
            code="CKPT-ROPE",
            where=fields.where,
        )
