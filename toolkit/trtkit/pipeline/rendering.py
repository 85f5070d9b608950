"""The texts of a model repository, from a request or from engines that stand. Knows which renderer a backend has."""

from collections.abc import Mapping

from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.checkpoints.stop_ids import read_stop_ids
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.requested_spec import engine_spec
from trtkit.pipeline.llmapi_backend import llmapi_repository
from trtkit.pipeline.request import BuildRequest
from trtkit.repository.render import TokenIds, render_repository


def repository_texts(request: BuildRequest) -> dict[str, str]:
    """What the repository will hold: relative path -> text. No engine has to be there."""
    if request.config.backend == "llmapi":
        return llmapi_repository(request)
    engines = {role: _predicted_engine(role, request) for role in request.config.models}
    return dict(sorted(repository_files(request, engines).items()))


def repository_files(request: BuildRequest, engines: Mapping[str, EngineInfo]) -> dict[str, str]:
    """The files of the model repository for these engines: relative path -> text."""
    end_ids, pad_id = read_stop_ids(request.inputs["target"].folder)
    return render_repository(request.config, engines, TokenIds(end_ids, pad_id))


def _predicted_engine(role: str, request: BuildRequest) -> EngineInfo:
    """What the engine directory will say of itself."""
    model = request.config.models[role]
    source = read_model_spec(request.inputs[role].folder)
    return EngineInfo(
        folder=request.out / "engines" / role,
        version=request.config.tensorrt_llm,
        architecture=source.architecture,
        dtype=model.dtype,
        vocab_size=source.vocab_size,
        world_size=model.tensor_parallel * model.pipeline_parallel,
        spec=engine_spec(role, request.config, request.sm),
        checkpoint=(request.out / "checkpoints" / role).resolve(),
    )
