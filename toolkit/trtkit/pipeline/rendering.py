"""The texts of a model repository, from a request or from engines that stand. Knows which renderer a backend has."""

from collections.abc import Callable

from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.engines.inspect import EngineInfo, read_engine
from trtkit.engines.requested_spec import engine_spec
from trtkit.pipeline.attention_windows import attention_windows
from trtkit.pipeline.kv_memory import planned_kv_memory
from trtkit.pipeline.llmapi_backend import llmapi_repository
from trtkit.pipeline.request import BuildRequest
from trtkit.repository.render import TokenIds, render_repository

EngineOf = Callable[[str, BuildRequest], EngineInfo]


def repository_texts(request: BuildRequest, engine_of: EngineOf | None = None) -> dict[str, str]:
    """What the repository holds: relative path -> text. Without `engine_of`, no engine has to be there."""
    if request.config.backend == "llmapi":
        return llmapi_repository(request)
    engines = {role: (engine_of or predicted_engine)(role, request) for role in request.config.models}
    end_ids, pad_id = read_stop_ids(request.inputs["target"].folder)
    return render_repository(
        request.config,
        engines,
        TokenIds(end_ids, pad_id),
        kv_memory=planned_kv_memory(request),
        windows=_windows(request) if request.config.backend == "engine" else {},
    )


def _windows(request: BuildRequest) -> dict[str, tuple[int, ...]]:
    """trtkit's own engine reads them in the checkpoint's config.json."""
    longest = {role: engine_spec(role, request.config, request.sm).built_max_seq_len for role in request.inputs}
    return {
        role: attention_windows(read_model_spec(source.folder), longest[role])
        for role, source in request.inputs.items()
    }


def built_engine(role: str, request: BuildRequest) -> EngineInfo:
    """What the engine directory says of itself."""
    return read_engine(request.out / "engines" / role)


def predicted_engine(role: str, request: BuildRequest) -> EngineInfo:
    """What the engine directory will say of itself."""
    model, spec = request.config.models[role], engine_spec(role, request.config, request.sm)
    source = read_model_spec(request.inputs[role].folder)
    return EngineInfo(
        folder=request.out / "engines" / role,
        version=request.config.tensorrt_llm,
        architecture=source.architecture,
        dtype=model.dtype,
        vocab_size=request.pad_vocab_to(role) or source.vocab_size,
        world_size=model.tensor_parallel * model.pipeline_parallel,
        spec=spec,
        paged_context_fmha=spec.paged_context_fmha,
        checkpoint=(request.out / "checkpoints" / role).resolve(),
    )
