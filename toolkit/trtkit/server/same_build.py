"""Whether a model that a server runs is the one a build has: the first difference that matters. Pure; asks nobody."""

from collections.abc import Iterable, Iterator
from typing import Any

from trtkit.server.model_loading import GRPC_ADDRESS
from trtkit.serving.contract import DRAFT, TARGET

# Of the LLM's parameters most say where it runs and with how much memory, which changes no answer.
_LLM_PARAMETERS = frozenset(
    (
        "exclude_input_in_output",
        "max_beam_width",
        "decoding_mode",
        "max_attention_window_size",
        "sink_token_length",
        "enable_kv_cache_reuse",
    )
)


def first_difference(built: Any, served: Any) -> str | None:
    """What the second ModelConfig says otherwise than the first, in words; None where both answer alike.

    Compared are the tensors, whether responses are streamed, the batch, an ensemble's steps, and the parameters that
    trtkit's models read.
    """
    return next(_differences(built, served), None)


def _differences(built: Any, served: Any) -> Iterator[str]:
    yield from _unlike("max_batch_size", built.max_batch_size, served.max_batch_size)
    if not built.ensemble_scheduling.step:  # of an ensemble Triton says what its steps are
        ours, theirs = (config.model_transaction_policy.decoupled for config in (built, served))
        yield from _unlike("decoupled", ours, theirs)
    for kind in ("input", "output"):
        ours, theirs = ({tensor.name: _signature(tensor) for tensor in getattr(c, kind)} for c in (built, served))
        yield from _unlike_items(kind, ours, theirs)
    ours, theirs = ([_step(step) for step in config.ensemble_scheduling.step] for config in (built, served))
    yield from _unlike("ensemble steps", ours, theirs)
    yield from _unlike_items("parameter", _parameters(built), _parameters(served))


def _parameters(config: Any) -> dict[str, str]:
    everything = {key: parameter.string_value for key, parameter in config.parameters.items()}
    if config.name in (TARGET, DRAFT):
        return {key: value for key, value in everything.items() if key in _LLM_PARAMETERS}
    return {key: value for key, value in everything.items() if key != GRPC_ADDRESS}


def _signature(tensor: Any) -> str:
    # Outputs have no flag `optional`.
    optional = " optional" if getattr(tensor, "optional", False) else ""
    return f"type {tensor.data_type} {list(tensor.dims)}{optional}{' scalar' if tensor.HasField('reshape') else ''}"


def _step(step: Any) -> tuple[str, dict[str, str], dict[str, str]]:
    return step.model_name, dict(step.input_map), dict(step.output_map)


def _unlike_items(kind: str, ours: dict[str, str], theirs: dict[str, str]) -> Iterator[str]:
    for name in _in_order(ours, theirs):
        yield from _unlike(f"{kind} {name}", ours.get(name), theirs.get(name))


def _in_order(ours: Iterable[str], theirs: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*ours, *theirs)))


def _unlike(what: str, ours: Any, theirs: Any) -> Iterator[str]:
    if ours != theirs:
        built, served = (_shown(value) for value in (ours, theirs))
        yield f"{what} is {served} there, {built} in the build"


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)
