"""BuildConfig and engines to the files of a Triton repository: six models. Pure, except for `write_repository`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.config.schema import BuildConfig
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.placement import hands_logits_over, place
from trtkit.errors import InputError
from trtkit.repository.ensemble import ensemble_steps
from trtkit.repository.llm_parameters import KvMemory, LlmPlacement, llm_parameters
from trtkit.repository.pbtxt import ModelConfig, to_pbtxt
from trtkit.serving.contract import BLS, DRAFT, ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET, contracts

TOKENIZER_DIR = "tokenizer"
ENGINE_DIRS = {TARGET: "engines/target", DRAFT: "engines/draft"}

_SHIMS = {
    PREPROCESSING: "from trtkit.serving.preprocessing import Preprocessor as TritonPythonModel  # noqa: F401\n",
    POSTPROCESSING: "from trtkit.serving.postprocessing import Postprocessor as TritonPythonModel  # noqa: F401\n",
    BLS: "from trtkit.serving.bls import DraftTarget as TritonPythonModel  # noqa: F401\n",
}


@dataclass(frozen=True)
class TokenIds:
    """The ids a request falls back on. end_ids ends an answer; the first is the engine's end_id.

    Checkpoints name several end ids where a chat template ends turns with another token than texts.
    """

    end_ids: tuple[int, ...]
    pad_id: int


def render_repository(
    config: BuildConfig,
    engines: Mapping[str, EngineInfo],
    token_ids: TokenIds,
    *,
    kv_memory: Mapping[str, KvMemory] | None = None,
    windows: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, str]:
    """Every file of the model repository: relative path -> text.

    `engines` has "target", and "draft" where the config has one. kv_memory holds what a role's cache may take;
    by default each of two models that share a GPU has less than half of it, and one with GPUs of its own has 0.9.
    windows: what the layers of a role attend to, where TensorRT-LLM must be told it.
    Paths inside the files are relative to the build directory. Raises InputError for what trtkit's Triton models do
    not serve.
    """
    _refuse_unserved(config, engines)
    placements = _placements(config, engines, kv_memory or {}, windows or {})
    ids = {
        "end_ids": ",".join(map(str, token_ids.end_ids)),
        "pad_id": str(token_ids.pad_id),
        "vocab_size": str(engines["target"].vocab_size),
    }
    models = {
        name: ModelConfig(
            contract,
            max_batch_size=config.limits.max_batch_size,
            backend="tensorrtllm" if name in ENGINE_DIRS else "python",
            decoupled=config.serving.streaming and name in (*ENGINE_DIRS, BLS),
            preferred_batch_size=config.limits.max_batch_size if name in ENGINE_DIRS else None,
            parameters=_parameters(name, config, ids, placements),
            steps=ensemble_steps(config.tensorrt_llm) if name == ENSEMBLE else (),
        )
        for name, contract in contracts(config.tensorrt_llm, with_draft="draft" in engines).items()
    }
    files = {f"{name}/config.pbtxt": to_pbtxt(model) for name, model in models.items()}
    shims = {f"{name}/1/model.py": shim for name, shim in _SHIMS.items()}
    # Triton wants a version directory for every model; a file keeps it there through git and archives.
    versions = {f"{name}/1/.keep": "" for name in models if name not in _SHIMS}
    return dict(sorted((files | shims | versions).items()))


def write_repository(files: Mapping[str, str], out: Path) -> None:
    """Write rendered files below `out`, each whole or not at all."""
    for path, text in files.items():
        write_text(out / path, text)


def _refuse_unserved(config: BuildConfig, engines: Mapping[str, EngineInfo]) -> None:
    if engines.keys() != config.models.keys():
        raise InputError(
            f"the config has {sorted(config.models)} but the engines are {sorted(engines)}",
            "build every engine of the config first",
            code="REPO-ENGINES",
        )
    sinks, longest = config.attention_sinks, config.limits.max_input_len
    if sinks is not None and sinks.strategy == "rolling":
        shown = sinks.sink_tokens + sinks.window_tokens
        if shown > longest or sinks.window_tokens <= config.max_draft_len:
            raise InputError(
                f"sinks and window are {shown} tokens; they must fit into max_input_len {longest}, and the window must"
                f" be longer than max_draft_len {config.max_draft_len}",
                "choose another window_tokens, or a larger limits.max_input_len",
                code="SINK-WINDOW",
                where="attention_sinks.window_tokens",
            )
    built = engines["target"].spec.max_draft_len
    if config.max_draft_len > built:
        raise InputError(
            f"the target engine accepts {built} draft tokens, the config asks for {config.max_draft_len}",
            "build the target engine again with this max_draft_len",
            code="SPEC-K",
            where="speculation.max_draft_len",
        )


def _placements(
    config: BuildConfig,
    engines: Mapping[str, EngineInfo],
    kv_memory: Mapping[str, KvMemory],
    windows: Mapping[str, tuple[int, ...]],
) -> dict[str, LlmPlacement]:
    placed = place(config)
    participants = placed.participants if hands_logits_over(config) else {}
    # The fraction is of the memory that is free at load; NVIDIA's guide keeps each of two at or below a half.
    default = KvMemory(0.45 if placed.shared else 0.9)
    return {
        model: LlmPlacement(
            engine_dir=ENGINE_DIRS[model],
            kv_memory=kv_memory.get(role, default),
            devices=placed.devices[role],
            reuse=config.kv_cache.reuse and (engines[role].paged_context_fmha or config.backend != "engine"),
            participants=participants.get(role, ()),
            windows=windows.get(role, ()),
        )
        for model, role in ((TARGET, "target"), (DRAFT, "draft"))
        if role in engines
    }


def _parameters(
    name: str, config: BuildConfig, ids: Mapping[str, str], placements: Mapping[str, LlmPlacement]
) -> dict[str, str]:
    match name:
        case "preprocessing":
            return {"tokenizer_dir": TOKENIZER_DIR, "add_special_tokens": "true", **ids}
        case "postprocessing":
            return {"tokenizer_dir": TOKENIZER_DIR, "skip_special_tokens": "true"}
        case "tensorrt_llm_bls":
            return _bls_parameters(config, ids, speculates=DRAFT in placements)
        case "ensemble":
            return {}
    return llm_parameters(config, placements[name])


def _bls_parameters(config: BuildConfig, ids: Mapping[str, str], *, speculates: bool) -> dict[str, str]:
    speculation = config.speculation
    drafting = {
        "tensorrt_llm_draft_model_name": DRAFT,
        "max_draft_len": str(config.max_draft_len),
        "adaptive_draft_length": _flag(getattr(speculation, "adaptive", False)),
        "use_draft_logits": _flag(getattr(speculation, "acceptance", "token") == "logits"),
    }
    return {
        "tensorrt_llm_version": config.tensorrt_llm,
        # Where the model finds its own server; trtkit serve replaces it when it chooses other ports.
        "grpc_address": f"127.0.0.1:{config.serving.grpc_port}",
        "tensorrt_llm_model_name": TARGET,
        **(drafting if speculates else {}),
        "tokenizer_dir": TOKENIZER_DIR,
        "add_special_tokens": "true",
        "skip_special_tokens": "true",
        "exclude_input_in_output": "false",
        "max_input_len": str(config.limits.max_input_len),
        "max_seq_len": str(config.limits.max_seq_len),
        **_rolling_parameters(config),
        "max_concurrency": str(max(64, 4 * config.limits.max_batch_size)),
        "cancellation_check_period_ms": "100",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        **ids,
    }


def _rolling_parameters(config: BuildConfig) -> dict[str, str]:
    """Sinks that the BLS model keeps; by default a quarter of the window goes at once, in whole blocks."""
    sinks = config.attention_sinks
    if sinks is None or sinks.strategy != "rolling":
        return {}
    quarter = sinks.window_tokens // 4
    whole_blocks = quarter - quarter % config.kv_cache.block_size
    return {
        "sink_tokens": str(sinks.sink_tokens),
        "window_tokens": str(sinks.window_tokens),
        "evict_tokens": str(sinks.evict_tokens or whole_blocks or max(1, quarter)),
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"
