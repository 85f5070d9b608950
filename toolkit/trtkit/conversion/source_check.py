"""Proves that a checkpoint's tensors are exactly those its config announces. Knows names and shapes, no data."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.checkpoints.stored_tensor import FLOAT_DTYPES, StoredTensor
from trtkit.conversion.layout import dimensions_of, rules_for
from trtkit.conversion.rules import Part, Rule, WeightMap
from trtkit.conversion.source_scales import FP8, is_scale, refuse_foreign_formats
from trtkit.errors import CheckpointError

_SHOWN = 3
Shape = tuple[int, ...]


def resolve_names(spec: ModelSpec, weight_map: WeightMap, weights: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Name in the rules -> name in the checkpoint, after proving that nothing is missing, misshapen or left over.

    Raises CheckpointError: CKPT-MISSING, CKPT-SHAPE, CKPT-DTYPE, CKPT-UNUSED.
    """
    rules = rules_for(spec, weight_map)
    prefix = _prefix(rules, weight_map, weights)
    expected: dict[str, Shape] = {}
    names: dict[str, str] = {}
    missing = []
    for name, shape in _expected(spec, rules):
        stored = prefix + name if prefix + name in weights else name
        expected[name] = tuple(max(sizes) for sizes in zip(shape, expected.get(name, shape), strict=True))
        names[name] = stored
        if stored not in weights:
            missing.append(stored)
        if len(missing) >= _SHOWN:
            break
    if missing:
        refuse_foreign_formats(weights)
    _refuse_missing(missing, spec, weights)
    refuse_foreign_formats(weights)
    for name, shape in expected.items():
        _check_tensor(weights[names[name]], shape, weights)
    _refuse_leftovers(set(weights) - set(names.values()), spec, weight_map, weights)
    return names


def _prefix(rules: list[Rule], weight_map: WeightMap, weights: Mapping[str, StoredTensor]) -> str:
    """The prefix under which the first rule's source is found; the first one when under none."""
    first = rules[0].parts[0].source
    return next((prefix for prefix in weight_map.prefixes if prefix + first in weights), weight_map.prefixes[0])


def _expected(spec: ModelSpec, rules: list[Rule]) -> Iterator[tuple[str, Shape]]:
    """Every (source name, shape) the rules read; a tensor read in segments comes once per segment, growing."""
    sizes = dimensions_of(spec)
    for rule in rules:
        if rule.stage in ("first", "last"):
            yield from ((part.source, _shape(rule, part, sizes)) for part in rule.parts)
    for layer in range(spec.num_layers):
        sparse = spec.moe is not None and spec.moe.is_sparse(layer)
        stages = ("layer", "sparse" if sparse else "dense")
        for rule in (rule for rule in rules if rule.stage in stages):
            for part in rule.parts:
                name, shape = part.source.replace("{i}", str(layer)), _shape(rule, part, sizes)
                experts = range(sizes["experts"]) if "{e}" in name else range(1)
                yield from ((name.replace("{e}", str(expert)), shape) for expert in experts)


def _shape(rule: Rule, part: Part, sizes: Mapping[str, int]) -> Shape:
    """The source's shape as far as this part reaches, in the source's orientation."""
    rows = sizes[part.rows] + (sum(sizes[symbol] for symbol in part.after.split("+")) if part.after else 0)
    if not rule.columns:
        return (rows,)
    return (sizes[rule.columns], rows) if part.transposed else (rows, sizes[rule.columns])


def _refuse_missing(missing: list[str], spec: ModelSpec, weights: Mapping[str, StoredTensor]) -> None:
    if not missing:
        return
    fix = "download the checkpoint again; its config.json announces these tensors"
    if missing == ["lm_head.weight"] and not spec.tie_word_embeddings:
        fix = "set tie_word_embeddings to true in config.json if the head is tied, else the checkpoint is incomplete"
    raise CheckpointError(
        f"{_listed(missing)} missing from the {len(weights)} tensors of this {spec.family} checkpoint",
        fix,
        code="CKPT-MISSING",
        where=_folder_of(weights),
    )


def _check_tensor(tensor: StoredTensor, shape: Shape, weights: Mapping[str, StoredTensor]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"{tensor.name} has shape {list(tensor.shape)}; config.json makes it {list(shape)}",
            "use the config.json that belongs to these weights",
            code="CKPT-SHAPE",
            where=str(tensor.file),
        )
    is_scaled = tensor.dtype == FP8 and f"{tensor.name}_scale" in weights
    if tensor.dtype not in FLOAT_DTYPES and not is_scaled:
        raise CheckpointError(
            f"{tensor.name} has dtype {tensor.dtype}",
            f"save the checkpoint in {', '.join(FLOAT_DTYPES)}, or in FP8 with a weight_scale beside each weight",
            code="CKPT-DTYPE",
            where=str(tensor.file),
        )


def _refuse_leftovers(
    left: set[str], spec: ModelSpec, weight_map: WeightMap, weights: Mapping[str, StoredTensor]
) -> None:
    """A tensor that no rule reads would be lost silently, so it is refused; a tied head's copy is not a loss."""
    ignored = (*weight_map.ignored, *(("lm_head.weight",) if spec.tie_word_embeddings else ()))
    lost = (name for name in left if not is_scale(name, weights))
    unused = sorted(name for name in lost if not any(fnmatchcase(name, pattern) for pattern in ignored))
    if unused:
        raise CheckpointError(
            f"{_listed(unused)} belong to nothing that the {spec.family} architecture has",
            "use the config.json that belongs to these weights; a conversion would lose them silently",
            code="CKPT-UNUSED",
            where=str(weights[unused[0]].file),
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(islice(names, _SHOWN)) + more


def _folder_of(weights: Mapping[str, StoredTensor]) -> str:
    return next((str(tensor.file.parent) for tensor in weights.values()), "")
