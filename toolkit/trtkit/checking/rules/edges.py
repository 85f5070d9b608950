"""Rules about the edges between Triton models: ensemble maps and the calls of the BLS. Knows no parameters' meaning."""

from collections.abc import Iterable, Iterator, Mapping

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.repository import BLS, Port, Repository, Step, TritonModel

# What a BLS sends at least; a model that requires more than this was copied from other templates.
_SENT: Mapping[str, frozenset[str]] = {
    "preprocessing": frozenset({"QUERY", "REQUEST_OUTPUT_LEN"}),
    "postprocessing": frozenset({"TOKENS_BATCH", "SEQUENCE_LENGTH"}),
    "tensorrt_llm": frozenset({"input_ids", "input_lengths", "request_output_len"}),
    "tensorrt_llm_draft": frozenset({"input_ids", "input_lengths", "request_output_len"}),
}


def _ensembles(repository: Repository) -> Iterator[tuple[TritonModel, Step]]:
    for model in repository.models.values():
        for step in model.steps:
            yield model, step


def _absent_models(repository: Repository) -> Iterable[Hit]:
    for ensemble, step in _ensembles(repository):
        if step.model not in repository.models:
            yield hit(ensemble.place("ensemble_scheduling"), model=step.model)
    bls = repository.models.get(BLS)
    for key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"):
        named = bls.parameter(key) if bls else None
        if bls is not None and named is not None and named not in repository.models:
            yield hit(bls.place(f"parameters.{key}"), model=named)


def _absent_tensors(repository: Repository) -> Iterable[Hit]:
    for ensemble, step in _ensembles(repository):
        model = repository.models.get(step.model)
        if model is None:
            continue
        for names, ports, kind in (
            (step.inputs, model.inputs, "input"),
            (step.outputs, model.outputs, "output"),
        ):
            known = {port.name for port in ports}
            for name in names:
                if name not in known:
                    yield hit(ensemble.place("ensemble_scheduling"), model=model.name, kind=kind, tensor=name)


def _unmapped_inputs(repository: Repository) -> Iterable[Hit]:
    for ensemble, step in _ensembles(repository):
        model = repository.models.get(step.model)
        for port in model.inputs if model else ():
            if not port.optional and port.name not in step.inputs:
                yield hit(ensemble.place("ensemble_scheduling"), model=step.model, tensor=port.name)


def _unproduced(repository: Repository) -> Iterable[Hit]:
    for ensemble in repository.models.values():
        if not ensemble.steps:
            continue
        made = {port.name for port in ensemble.inputs}
        made |= {name for step in ensemble.steps for name in step.outputs.values()}
        wanted = [(step.model, name) for step in ensemble.steps for name in step.inputs.values()]
        wanted += [("the ensemble's outputs", port.name) for port in ensemble.outputs]
        for who, name in wanted:
            if name not in made:
                yield hit(ensemble.place("ensemble_scheduling"), who=who, tensor=name)


def _unused(repository: Repository) -> Iterable[Hit]:
    for ensemble in repository.models.values():
        used = {name for step in ensemble.steps for name in step.inputs.values()}
        for port in ensemble.inputs if ensemble.steps else ():
            if port.name not in used:
                yield hit(ensemble.place("input"), tensor=port.name)


def _types(repository: Repository) -> Iterable[Hit]:
    """Both ends of every ensemble tensor must have one type, and lengths that can agree."""
    for ensemble in repository.models.values():
        ends: dict[str, tuple[str, Port]] = {port.name: ("the ensemble", port) for port in ensemble.inputs}
        for who, name, port in _step_ends(repository, ensemble):
            first = ends.setdefault(name, (who, port))
            if not _agree(first[1], port):
                yield hit(
                    ensemble.place("ensemble_scheduling"),
                    tensor=name,
                    one=f"{first[0]} {first[1].name} {first[1].dtype}{list(first[1].dims)}",
                    other=f"{who} {port.name} {port.dtype}{list(port.dims)}",
                )


def _step_ends(repository: Repository, ensemble: TritonModel) -> Iterator[tuple[str, str, Port]]:
    """(model, the ensemble's name, the model's port) of every mapped tensor, and of the ensemble's outputs."""
    for step in ensemble.steps:
        model = repository.models.get(step.model)
        if model is None:
            continue
        ports = {port.name: port for port in (*model.inputs, *model.outputs)}
        for name, outer in (*step.inputs.items(), *step.outputs.items()):
            if name in ports:
                yield step.model, outer, ports[name]
    for port in ensemble.outputs if ensemble.steps else ():
        yield "the ensemble", port.name, port


def _agree(one: Port, other: Port) -> bool:
    lengths = zip(one.dims, other.dims, strict=False)
    return (
        one.dtype == other.dtype
        and len(one.dims) == len(other.dims)
        and all(a == b or -1 in (a, b) for a, b in lengths)
    )


def _optional(repository: Repository) -> Iterable[Hit]:
    """An optional input of the ensemble must not feed a required input of a model."""
    for ensemble, step in _ensembles(repository):
        model = repository.models.get(step.model)
        optional = {port.name for port in ensemble.inputs if port.optional}
        required = {port.name for port in model.inputs if not port.optional} if model else set()
        for name, outer in step.inputs.items():
            if outer in optional and name in required:
                yield hit(ensemble.place("input"), tensor=outer, model=step.model, inner=name)


def _bls_edges(repository: Repository) -> Iterable[Hit]:
    if BLS not in repository.models:
        return
    for name, sent in _SENT.items():
        model = repository.models.get(name)
        extra = [port.name for port in model.inputs if not port.optional and port.name not in sent] if model else []
        if model is not None and extra:
            yield hit(model.place("input"), model=name, tensors=", ".join(extra))


def _bls_draft_input(repository: Repository) -> Iterable[Hit]:
    target, draft = repository.target, repository.draft
    if target is not None and draft is not None and BLS in repository.models:
        if "draft_input_ids" not in {port.name for port in target.inputs}:
            yield hit(target.place("input"), model=target.name)


_EDGE = "ensemble/config.pbtxt:ensemble_scheduling"
EDGE_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="EDGE-MODEL",
        severity="error",
        looks_at="repository",
        when="an ensemble step, or the BLS, names a model that is not in the repository",
        cause="there is no model {model} in this repository",
        fix="add its folder, or correct the name",
        source="Triton: ensemble depends on a model which has no loaded version",
        find=_absent_models,
        example=hit(_EDGE, model="tensorrt_llm_draft"),
    ),
    Rule(
        code="EDGE-TENSOR",
        severity="error",
        looks_at="repository",
        when="an ensemble map names a tensor that the model does not declare",
        cause="{model} has no {kind} {tensor}",
        fix="correct the name in the map, or take both files from one release",
        source="Triton's validation of ensembles",
        find=_absent_tensors,
        example=hit(_EDGE, model="postprocessing", kind="input", tensor="CUM_LOG_PROBS"),
    ),
    Rule(
        code="EDGE-UNMAPPED",
        severity="error",
        looks_at="repository",
        when="a required input of a step is not mapped",
        cause="input {tensor} of {model} is required and not mapped to any tensor",
        fix="map it, or declare it optional",
        source="Triton's validation of ensembles",
        find=_unmapped_inputs,
        example=hit(_EDGE, model="tensorrt_llm", tensor="input_lengths"),
    ),
    Rule(
        code="EDGE-SOURCE",
        severity="error",
        looks_at="repository",
        when="a tensor of an ensemble is read and nobody produces it",
        cause="{who} wants {tensor}, and neither an input nor a step produces it",
        fix="map an output to {tensor}, or correct the name",
        source="Triton's validation of ensembles",
        find=_unproduced,
        example=hit(_EDGE, who="postprocessing", tensor="_TOKENS"),
    ),
    Rule(
        code="EDGE-UNUSED",
        severity="error",
        looks_at="repository",
        when="an input of an ensemble goes nowhere",
        cause="the ensemble's input {tensor} is used by no step",
        fix="map it to a step, or take it out",
        source="Triton's validation of ensembles: is unused",
        find=_unused,
        example=hit("ensemble/config.pbtxt:input", tensor="seed"),
    ),
    Rule(
        code="EDGE-TYPE",
        severity="error",
        looks_at="repository",
        when="the two ends of an ensemble tensor have different types or shapes",
        cause="{tensor} is {one} on one end and {other} on the other",
        fix="take both files from one release of the templates",
        source="Triton: inconsistent data type, inconsistent shape",
        find=_types,
        example=hit(
            _EDGE, tensor="_ids", one="preprocessing INPUT_ID INT32[-1]", other="tensorrt_llm input_ids INT64[-1]"
        ),
    ),
    Rule(
        code="EDGE-OPTIONAL",
        severity="error",
        looks_at="repository",
        when="an optional input of an ensemble feeds a required input of a step",
        cause="{tensor} may be left out, but {model} requires it as {inner}",
        fix="declare {tensor} required in the ensemble, or {inner} optional",
        source="Triton's ensemble scheduler",
        find=_optional,
        example=hit(
            "ensemble/config.pbtxt:input", tensor="max_tokens", model="preprocessing", inner="REQUEST_OUTPUT_LEN"
        ),
    ),
    Rule(
        code="EDGE-BLS",
        severity="warning",
        looks_at="repository",
        when="a model that the BLS calls requires inputs that a BLS does not send",
        cause="{model} requires {tensors}, which a BLS of TensorRT-LLM 0.17 or later does not send",
        fix="take all models from one release of the templates",
        source="tensorrtllm_backend issue #193",
        find=_bls_edges,
        example=hit("postprocessing/config.pbtxt:input", model="postprocessing", tensors="CUM_LOG_PROBS"),
    ),
    Rule(
        code="EDGE-DRAFT",
        severity="error",
        looks_at="repository",
        when="there is a draft model, and the target has no input for drafts",
        cause="{model} has no input draft_input_ids, so drafts cannot be verified",
        fix="take tensorrt_llm/config.pbtxt from a release of 0.12 or later",
        source="tensorrt_llm/config.pbtxt of inflight_batcher_llm",
        find=_bls_draft_input,
        example=hit("tensorrt_llm/config.pbtxt:input", model="tensorrt_llm"),
    ),
)
