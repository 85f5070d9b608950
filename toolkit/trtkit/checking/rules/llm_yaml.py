"""Rules about model.yaml of Triton's llmapi model. Knows the LLM API's keys by release, no engine."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.llm_yaml import LLM_FILE
from trtkit.checking.subjects.repository import Repository
from trtkit.engines.release import LlmApi, releases

_TRITON_KEYS = ("max_batch_size", "decoupled")


def _documents(repository: Repository) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place of model.yaml, its mapping) of every llmapi model."""
    for model in repository.models.values():
        if model.llm is not None:
            yield f"{model.folder.name}/{model.versions[-1].name}/{LLM_FILE}", model.llm


def _apis() -> list[LlmApi]:
    return [release.llm_api for release in releases() if release.llm_api is not None]


def _section(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _sinks(repository: Repository) -> Iterable[Hit]:
    for place, document in _documents(repository):
        if _section(document, "kv_cache_config").get("sink_token_length") is not None:
            yield hit(f"{place}:kv_cache_config.sink_token_length")


def _spelling(repository: Repository) -> Iterable[Hit]:
    pairs = list(dict.fromkeys((api.decoding_type, api.draft_key) for api in _apis()))
    for place, document in _documents(repository):
        section = _section(document, "speculative_config")
        kind = section.get("decoding_type")
        if kind not in {known for known, _ in pairs}:
            continue
        written = [key for _, key in pairs if key in section]
        if not any((kind, key) in pairs for key in written):
            known = "; ".join(f"{known} with {key}" for known, key in pairs)
            shown = ", ".join(written) or "no draft model"
            yield hit(f"{place}:speculative_config", kind=kind, written=shown, known=known)


def _unknown_keys(repository: Repository) -> Iterable[Hit]:
    known = {"triton_config", *(key for api in _apis() for key in api.keys)}
    for place, document in _documents(repository):
        for key in document:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                yield hit(f"{place}:{key}", name=key, hint=f", did you mean {near[0]}?" if near else "")


def _triton_config(repository: Repository) -> Iterable[Hit]:
    for place, document in _documents(repository):
        missing = [key for key in _TRITON_KEYS if key not in _section(document, "triton_config")]
        if missing:
            yield hit(f"{place}:triton_config", missing=" and ".join(missing))


def _tensorrt(repository: Repository) -> Iterable[Hit]:
    for place, document in _documents(repository):
        if document.get("backend") == "tensorrt":
            yield hit(f"{place}:backend")


def _pipeline(repository: Repository) -> Iterable[Hit]:
    for place, document in _documents(repository):
        stages = document.get("pipeline_parallel_size", 1)
        if document.get("speculative_config") and isinstance(stages, int) and stages > 1:
            yield hit(f"{place}:pipeline_parallel_size", stages=stages)


_FILE = "tensorrt_llm/1/model.yaml"
LLM_YAML_RULES: tuple[Rule[Repository], ...] = (
    Rule(
        code="LLM-SINKS",
        severity="error",
        looks_at="repository",
        when="model.yaml sets sink_token_length",
        cause="the LLM API ignores sink_token_length, and up to 1.2 reserves blocks for it: answers are silently wrong",
        fix="take it out; max_attention_window is the closest thing, and keeps no sinks",
        source="TensorRT-LLM PR #14275",
        find=_sinks,
        example=hit(f"{_FILE}:kv_cache_config.sink_token_length"),
    ),
    Rule(
        code="LLM-SPELLING",
        severity="error",
        looks_at="repository",
        when="decoding_type and the key of the draft model are not of one release",
        cause="decoding_type {kind} with {written}: no release knows them together",
        fix="write one of: {known}",
        source="TensorRT-LLM PR #11158",
        find=_spelling,
        example=hit(
            f"{_FILE}:speculative_config",
            kind="DraftTarget",
            written="speculative_model",
            known="DraftTarget with speculative_model_dir; Draft_Target with speculative_model",
        ),
    ),
    Rule(
        code="LLM-KEY",
        severity="warning",
        looks_at="repository",
        when="model.yaml has a key that no known release has",
        cause="no release that trtkit knows has the key {name}{hint}; unknown keys stop the server",
        fix="correct it, or take it out",
        source="llm_args.py: strict models",
        find=_unknown_keys,
        example=hit(f"{_FILE}:kv_cache_confg", name="kv_cache_confg", hint=", did you mean kv_cache_config?"),
    ),
    Rule(
        code="LLM-TRITON",
        severity="error",
        looks_at="repository",
        when="triton_config lacks max_batch_size or decoupled",
        cause="triton_config lacks {missing}, and model.py reads them without a default",
        fix="write triton_config: {{max_batch_size: 0, decoupled: true}}",
        source="llmapi/tensorrt_llm/1/model.py",
        find=_triton_config,
        example=hit(f"{_FILE}:triton_config", missing="decoupled"),
    ),
    Rule(
        code="LLM-BACKEND",
        severity="error",
        looks_at="repository",
        when="model.yaml asks for the TensorRT backend",
        cause="the llmapi model serves the PyTorch backend only since 1.0",
        fix="write backend: pytorch",
        source="release notes of 1.0.0",
        find=_tensorrt,
        example=hit(f"{_FILE}:backend"),
    ),
    Rule(
        code="LLM-PP",
        severity="error",
        looks_at="repository",
        when="model.yaml speculates over several pipeline stages",
        cause="the LLM API does not speculate over {stages} pipeline stages",
        fix="write pipeline_parallel_size: 1",
        source="feature matrix of the PyTorch backend",
        find=_pipeline,
        example=hit(f"{_FILE}:pipeline_parallel_size", stages=2),
    ),
)
