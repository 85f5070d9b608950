"""No dead YAML value: changing any field changes something that is built for a GPU, or the table says who reads it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from known_models import fill_cache
from pydantic import BaseModel
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.load import parse_config
from trtkit.config.presets import presets
from trtkit.config.schema import BuildConfig
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.engines.cache import engine_key
from trtkit.engines.requested_spec import engine_spec
from trtkit.errors import InputError
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.run import BuildOptions, prepare
from trtkit.pipeline.stages import requested_conversion

Changes = dict[str, Any]
ALONE: Changes = {"draft": None, "speculation": {"kind": "none"}}
# A pair whose vocabularies differ in size by padding.
QWEN: Changes = {
    "target.checkpoint": "Qwen/Qwen2.5-72B-Instruct",
    "draft.checkpoint": "Qwen/Qwen2.5-1.5B-Instruct",
    "kv_cache.dtype": "auto",
}
# Field -> its other value, and what else must be written for both to be possible.
ENGINE: dict[str, tuple[Any, Changes]] = {
    "name": ("another", {}),
    "backend": ("llmapi", ALONE | {"target.quantization": "none", "attention_sinks": None}),
    "tensorrt_llm": ("1.0.3", {}),
    "gpu.name": ("l40s-48gb", {}),
    "gpu.count": (8, {}),
    "target.checkpoint": ("meta-llama/Llama-3.1-8B-Instruct", ALONE),
    "target.dtype": ("float16", {}),
    "target.quantization": ("none", {"kv_cache.dtype": "auto"}),
    "target.tensor_parallel": (2, {}),
    "target.pipeline_parallel": (2, {"target.tensor_parallel": 2}),
    "target.expert_parallel": (2, ALONE | {"target.checkpoint": "mistralai/Mixtral-8x7B-Instruct-v0.1"}),
    "draft.checkpoint": ("meta-llama/Llama-3.1-8B-Instruct", {}),
    "draft.dtype": ("float16", {}),
    "draft.quantization": ("none", {"kv_cache.dtype": "auto"}),
    "draft.tensor_parallel": (2, {}),
    "draft.pipeline_parallel": (2, {}),
    "speculation.kind": ("none", {}),
    "speculation.max_draft_len": (3, {}),
    "speculation.acceptance": ("logits", {}),
    "speculation.adaptive": (False, {}),
    "speculation.pad_draft_vocab": (True, QWEN),
    "kv_cache.dtype": ("auto", {}),
    "kv_cache.block_size": (64, {}),
    "kv_cache.reuse": (False, ALONE | {"attention_sinks": None}),
    "attention_sinks.sink_tokens": (8, {}),
    "attention_sinks.window_tokens": (2044, {}),
    "attention_sinks.evict_tokens": (512, {}),
    "attention_sinks.strategy": ("engine", ALONE | {"tensorrt_llm": "0.21.0", "kv_cache.reuse": False}),
    "limits.max_batch_size": (16, {}),
    "limits.max_input_len": (4096, {}),
    "limits.max_output_len": (1024, {}),
    "serving.streaming": (False, {}),
    "serving.http_port": (9000, {}),
    "serving.grpc_port": (9001, {}),
    "serving.metrics_port": (9002, {}),
}
LLMAPI: dict[str, tuple[Any, Changes]] = {
    "name": ("another", {}),
    "tensorrt_llm": ("1.3.0rc29", {}),
    "target.checkpoint": (
        "meta-llama/Llama-3.3-70B-Instruct",
        ALONE | {"target.checkpoint": "meta-llama/Llama-3.1-8B-Instruct", "target.quantization": "none"},
    ),
    "target.dtype": ("float16", ALONE),
    "target.tensor_parallel": (2, {"draft.tensor_parallel": 2}),
    "target.pipeline_parallel": (2, ALONE | {"target.tensor_parallel": 2}),
    "target.expert_parallel": (
        2,
        ALONE | {"target.checkpoint": "mistralai/Mixtral-8x7B-Instruct-v0.1", "target.quantization": "none"},
    ),
    "draft.checkpoint": ("meta-llama/Llama-3.1-8B-Instruct", {}),
    "draft.quantization": ("fp8", {}),
    "speculation.kind": ("none", {}),
    "speculation.max_draft_len": (3, {}),
    "kv_cache.dtype": ("auto", {}),
    "kv_cache.block_size": (64, {}),
    "kv_cache.reuse": (True, ALONE),
    "limits.max_batch_size": (16, {}),
    "limits.max_input_len": (16384, {}),
    "limits.max_output_len": (1024, {}),
    "serving.streaming": (False, {}),
    "serving.http_port": (9000, {}),
    "serving.grpc_port": (9001, {}),
    "serving.metrics_port": (9002, {}),
}
# Fields that change no artifact of the build, and what they do change.
ELSEWHERE = {
    "target.revision": "which files are read; they enter by their content",
    "draft.revision": "which files are read; they enter by their content",
    "draft.expert_parallel": "like the target's, for a draft with experts",
    "calibration.samples": "trtkit calibrate",
    "calibration.max_len": "trtkit calibrate",
    "calibration.seed": "trtkit calibrate",
    "calibration.prompts": "trtkit calibrate",
    "verification.prompts": "trtkit parity, trtkit bench",
    "verification.max_new_tokens": "trtkit parity, trtkit bench",
    "verification.baseline": "trtkit bench",
    "verification.min_identical": "trtkit parity check",
    "verification.max_near_tie": "trtkit parity check",
    "verification.max_ttft_ms": "trtkit bench",
    "verification.max_tpot_ms": "trtkit bench",
    "verification.min_speedup": "trtkit bench",
    "verification.min_acceptance_rate": "trtkit bench",
}
# Fields that the LLM API has no counterpart for: any value but the one that means "nothing" is refused.
NOT_FOR_LLMAPI: dict[str, tuple[Any, Changes]] = {
    "target.quantization": ("none", {}),
    "draft.dtype": ("float16", {}),
    "speculation.acceptance": ("logits", {}),
    "speculation.adaptive": (True, {}),
    "speculation.pad_draft_vocab": (True, {}),
    "attention_sinks.sink_tokens": (4, {"attention_sinks.window_tokens": 1024}),
    "attention_sinks.window_tokens": (1024, {"attention_sinks.sink_tokens": 4}),
    "attention_sinks.strategy": ("rolling", {"attention_sinks.window_tokens": 1024}),
    "attention_sinks.evict_tokens": (32, {"attention_sinks.window_tokens": 1024}),
}
# Fields that a warning of trtkit check speaks of when they have no effect, and the machine's own.
WARNED_FOR_LLMAPI = {
    "draft.tensor_parallel": "LLMAPI-DRAFT-TP",
    "draft.pipeline_parallel": "the draft runs on the target's ranks",
    "gpu.name": "the LLM API asks the GPU itself",
    "gpu.count": "the LLM API takes one GPU for each rank",
    "backend": "tested above",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_cache(tmp_path_factory.mktemp("cache"))


def leaves(section: type[BaseModel] = BuildConfig, prefix: str = "") -> Iterator[str]:
    """Dotted name of every field that holds a value, unions and optional sections included."""
    for name, field in section.model_fields.items():
        inner = list(_sections(field.annotation))
        for model in inner:
            yield from leaves(model, f"{prefix}{name}.")
        if not inner:
            yield f"{prefix}{name}"


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def test_the_tables_name_every_field_of_the_schema() -> None:
    fields = set(leaves())
    assert ENGINE.keys() | ELSEWHERE.keys() == fields
    assert LLMAPI.keys() | NOT_FOR_LLMAPI.keys() | WARNED_FOR_LLMAPI.keys() | ELSEWHERE.keys() == fields


@pytest.mark.parametrize("field", ENGINE)
def test_every_field_changes_what_is_built_for_engines(field: str, cache: Path) -> None:
    value, needed = ENGINE[field]
    before = document("llama70b_spec", needed)
    assert artifacts(before, cache) != artifacts(changed(before, {field: value} | _dependent(field)), cache)


@pytest.mark.parametrize("field", LLMAPI)
def test_every_field_changes_what_is_built_for_the_llm_api(field: str, cache: Path) -> None:
    value, needed = LLMAPI[field]
    before = document("llama70b_spec_llmapi", needed)
    assert artifacts(before, cache) != artifacts(changed(before, {field: value} | _dependent(field)), cache)


@pytest.mark.parametrize("field", NOT_FOR_LLMAPI)
def test_what_the_llm_api_cannot_do_is_refused(field: str, cache: Path) -> None:
    value, needed = NOT_FOR_LLMAPI[field]
    with pytest.raises(InputError):
        artifacts(document("llama70b_spec_llmapi", needed | {field: value}), cache)


def test_other_draft_ranks_are_warned_of_on_the_llm_api(cache: Path) -> None:
    request = parse_config(document("llama70b_spec_llmapi", {"draft.tensor_parallel": 1}), where="t")
    _, findings = prepare(request, _options(cache), lambda _: None, without_weights=True)
    assert "LLMAPI-DRAFT-TP" in {finding.code for finding in findings}


def _dependent(field: str) -> Changes:
    """Without speculation there is no draft."""
    return ALONE if field == "speculation.kind" else {}


def document(preset: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    return changed(yaml.safe_load(presets()[preset].read_text(encoding="utf-8")), changes)


def changed(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with dotted keys set; setting a key of an absent section makes the section."""
    after: dict[str, Any] = json.loads(json.dumps(before))
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        section = after
        for key in path:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[last] = value
    return after


def artifacts(written: Mapping[str, Any], cache: Path) -> str:
    """Everything that a build of this YAML makes: commands, files with their texts, configs, keys of engines."""
    config = parse_config(written, where="t.yaml")
    planned = dry_run(config, _options(cache))
    stages = [{"files": s.files, "command": s.command, "texts": dict(s.texts), "out": str(s.out)} for s in planned]
    request, _ = prepare(config, _options(cache), lambda _: None, without_weights=True)
    return json.dumps([stages, _checkpoints(request)], default=str)


def _checkpoints(request: BuildRequest) -> list[Any]:
    if request.config.backend != "engine":
        return []
    made: list[Any] = []
    for role in request.config.models:
        source = read_model_spec(request.inputs[role].folder)
        made.append(checkpoint_config(source, requested_conversion(role, request)))
        spec = engine_spec(role, request.config, request.sm)
        made.append(engine_key("content", spec, request.release, spec.sm))
    return made


def _options(cache: Path) -> BuildOptions:
    return BuildOptions(cache=cache, where="t.yaml")
