"""What a build would do: stages, whether they are up to date, and the files each writes. Writes nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.artifacts import is_complete
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.schema import BuildConfig
from trtkit.conversion.report import MANIFEST_NAME
from trtkit.engines.inspect import EngineInfo
from trtkit.pipeline.run import BuildOptions, prepare, repository_files
from trtkit.pipeline.stages import BuildRequest, Stage, engine_spec, plan_stages
from trtkit.pipeline.tokenizer import tokenizer_files
from trtkit.progress import OnProgress, silent


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its directory, whether it would be skipped, and the files it writes, relative to the directory."""

    stage: str
    out: Path
    skipped: bool
    files: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The record of `build --dry-run --json`."""
        return {"stage": self.stage, "out": str(self.out), "skipped": self.skipped, "files": list(self.files)}


def dry_run(config: BuildConfig, options: BuildOptions, on_progress: OnProgress = silent) -> list[PlannedStage]:
    """Check the request and list the work. Raises what a build would raise before its first stage."""
    request, _ = prepare(config, options, on_progress)
    return [
        PlannedStage(stage.name, stage.out, is_complete(stage.out, stage.key), _files(stage, request))
        for stage in plan_stages(request)
        if options.only in (None, stage.group)
    ]


def _files(stage: Stage, request: BuildRequest) -> tuple[str, ...]:
    role = stage.name.split()[-1]
    if stage.group == "convert":
        model = request.config.models[role]
        ranks = model.tensor_parallel * model.pipeline_parallel
        return ("config.json", MANIFEST_NAME, *(f"rank{rank}.safetensors" for rank in range(ranks)))
    if stage.group == "engines":
        return ("config.json",)
    if stage.group == "tokenizer":
        return tokenizer_files(request.inputs["target"].folder)
    engines = {role: _predicted_engine(role, request) for role in request.config.models}
    return tuple(sorted(repository_files(request, engines)))


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
        spec=engine_spec(role, request.config),
        checkpoint=(request.out / "checkpoints" / role).resolve(),
    )
