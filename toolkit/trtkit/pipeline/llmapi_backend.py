"""The backend `llmapi` of a build: from the YAML to what the LLM API is told. Knows both vocabularies, no file."""

from pathlib import Path

from trtkit.config.schema import BuildConfig, DraftTarget, Model
from trtkit.conversion.options import HF_QUANTIZATIONS
from trtkit.engines.llmapi import LlmApiSpec, model_yaml
from trtkit.errors import InputError
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.stored import stored_quantization
from trtkit.repository.llmapi import render_llmapi_repository


def llmapi_spec(request: BuildRequest) -> LlmApiSpec:
    """What the LLM API is told. Raises InputError for what it cannot be told, or does not do."""
    config = request.config
    _refuse_unserved(config)
    for role, model in config.models.items():
        if role not in request.converted:
            _refuse_other_weights(role, model, request.inputs[role].folder)
    return LlmApiSpec(
        model=_source("target", request),
        revision=config.target.revision,
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
    runs; else the hub id, or the absolute folder of one that is on no hub."""
    if role in request.converted:
        return f"checkpoints/{role}"
    checkpoint = request.config.models[role].checkpoint
    on_no_hub = checkpoint.startswith("trtkit/") or Path(checkpoint).expanduser().exists()
    return str(request.inputs[role].folder) if on_no_hub else checkpoint


def _refuse_unserved(config: BuildConfig) -> None:
    """What the YAML can say and the LLM API has no counterpart for."""
    speculation = config.speculation
    if config.attention_sinks is not None:
        raise InputError(
            "the llmapi model takes whole prompts and nothing keeps attention sinks between requests",
            "remove attention_sinks, or use backend: engine",
            code="SINK-LLMAPI",
            where="attention_sinks",
        )
    if isinstance(speculation, DraftTarget) and speculation.adaptive:
        raise InputError(
            "the LLM API drafts with a fixed length",
            "write adaptive: false, or use backend: engine",
            code="LLMAPI-ADAPTIVE",
            where="speculation.adaptive",
        )
    if isinstance(speculation, DraftTarget) and speculation.pad_draft_vocab:
        raise InputError(
            "the LLM API compares token ids only, and takes the draft as it is",
            "write pad_draft_vocab: false, or use backend: engine",
            code="LLMAPI-DRAFT",
            where="speculation.pad_draft_vocab",
        )
    if config.draft is not None and (config.draft.revision or config.draft.dtype != config.target.dtype):
        raise InputError(
            "the LLM API takes revision and dtype of the target only",
            "give the draft as a folder, and write the target's dtype",
            code="LLMAPI-DRAFT",
            where="draft",
        )


def _refuse_other_weights(role: str, model: Model, folder: Path) -> None:
    """The PyTorch backend loads weights as they are stored; `quantization` must say how that is."""
    stored = stored_quantization(folder)
    if stored != model.quantization:
        raise InputError(
            f"the {role}'s weights are stored as {stored}, and no {model.quantization} is made of them for the LLM API",
            f"write {role}.quantization: {stored}, or give an unquantised checkpoint and one of "
            f"{', '.join(HF_QUANTIZATIONS)}",
            code="LLMAPI-QUANT",
            where=f"{role}.quantization",
        )
