"""The backend `llmapi` of a build: from the YAML to what the LLM API is told. Knows both vocabularies, no file."""

from pathlib import Path

from trtkit.checkpoints.hub import hub_commit
from trtkit.checkpoints.source import expanded
from trtkit.engines.llmapi import LlmApiSpec, model_yaml
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.sources import has_weights
from trtkit.repository.llmapi import render_llmapi_repository


def llmapi_spec(request: BuildRequest) -> LlmApiSpec:
    """What the LLM API is told. The check has refused what it cannot be told, or does not do."""
    config = request.config
    return LlmApiSpec(
        model=_source("target", request),
        revision=hub_commit(request.inputs["target"].folder) or config.target.revision,
        dtype=config.target.dtype,
        tensor_parallel=config.target.tensor_parallel,
        pipeline_parallel=config.target.pipeline_parallel,
        expert_parallel=config.target.expert_parallel,
        max_batch_size=config.limits.max_batch_size,
        max_input_len=config.limits.max_input_len,
        max_seq_len=config.limits.max_seq_len,
        kv_dtype=config.kv_cache.dtype,
        block_size=config.kv_cache.block_size,
        reuse=config.kv_cache.reuse,
        draft=_source("draft", request) if config.draft else None,
        max_draft_len=config.max_draft_len,
    )


def llmapi_repository(request: BuildRequest) -> dict[str, str]:
    """The files of the model repository: relative path -> text."""
    decoupled = request.config.serving.streaming
    text = model_yaml(llmapi_spec(request), request.release, decoupled=decoupled)
    return render_llmapi_repository(request.release, text, decoupled=decoupled)


def local_folders(request: BuildRequest) -> tuple[str, ...]:
    """Folders of this host that the LLM reads; hub ids are fetched by it."""
    sources = (_source(role, request) for role in request.config.models)
    return tuple(dict.fromkeys(source for source in sources if Path(source).is_absolute()))


def _source(role: str, request: BuildRequest) -> str:
    """The checkpoint as the LLM API may be told it: the build's own, seen from the build directory, where the server
    runs; else the folder whose weights the manifest has the digest of; else the hub id, whose weights nobody fetched.
    """
    if role in request.converted:
        return f"checkpoints/{role}"
    checkpoint, folder = request.config.models[role].checkpoint, request.inputs[role].folder
    is_here = expanded(checkpoint).exists() or has_weights(folder)
    return str(folder) if is_here else checkpoint
