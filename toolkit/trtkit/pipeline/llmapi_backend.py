"""The backend `llmapi` of a build: from the YAML to what the LLM API is told. Knows both vocabularies, no file."""

import json
from pathlib import Path

from trtkit.config.schema import BuildConfig, DraftTarget, Model
from trtkit.engines.llmapi import LlmApiSpec, model_yaml
from trtkit.engines.quant_algo import quantization_of
from trtkit.errors import InputError
from trtkit.pipeline.request import BuildRequest
from trtkit.repository.llmapi import render_llmapi_repository

_HOW_TO_MAKE_FP8 = (
    "; `trtkit calibrate CONFIG` and `trtkit convert CHECKPOINT OUT --format hf --quantization fp8 --calibration "
    "calibration.json` make one"
)


def llmapi_spec(request: BuildRequest) -> LlmApiSpec:
    """What the LLM API is told. Raises InputError for what it cannot be told, or does not do."""
    config = request.config
    _refuse_unserved(config)
    for role, model in config.models.items():
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
    """The checkpoint as the LLM API may be told it: the hub id, or the absolute folder of one that is on no hub."""
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
    if config.draft is not None and (config.draft.revision or config.draft.dtype != config.target.dtype):
        raise InputError(
            "the LLM API takes revision and dtype of the target only",
            "give the draft as a folder, and write the target's dtype",
            code="LLMAPI-DRAFT",
            where="draft",
        )


def _refuse_other_weights(role: str, model: Model, folder: Path) -> None:
    """The PyTorch backend loads weights as they are stored; `quantization` must say how that is."""
    stored = _stored_quantization(folder)
    if stored != model.quantization:
        raise InputError(
            f"the {role}'s weights are stored as {stored}, not {model.quantization}, and the LLM API converts none",
            f"write {role}.quantization: {stored}, or choose a checkpoint that is quantised so (hf_quant_config.json)"
            + (_HOW_TO_MAKE_FP8 if (stored, model.quantization) == ("none", "fp8") else ""),
            code="LLMAPI-QUANT",
            where=f"{role}.quantization",
        )


def _stored_quantization(folder: Path) -> str:
    """What hf_quant_config.json says, in the YAML's words; "none" without that file."""
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return "none"
    try:
        algorithm = json.loads(path.read_text(encoding="utf-8"))["quantization"]["quant_algo"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"not a quantization config: {type(error).__name__} {error}",
            "fetch the file again from where the checkpoint comes from",
            code="CKPT-QUANT-CONFIG",
            where=str(path),
        ) from None
    return quantization_of(algorithm)
