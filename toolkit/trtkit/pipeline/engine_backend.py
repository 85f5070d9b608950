"""The backend `engine` of a build: the tools it takes, its jobs and commands. Runs nothing."""

from pathlib import Path

from trtkit.doctor import Machine
from trtkit.engines.build import BuildTools, EngineJob
from trtkit.engines.build_args import BuildPaths, build_command
from trtkit.engines.requested_spec import engine_spec
from trtkit.engines.runner import RunnerName, choose_runner
from trtkit.engines.same_release import same_release
from trtkit.engines.workers import HostRoom
from trtkit.errors import MissingToolError
from trtkit.pipeline.request import BuildRequest


def find_tools(request: BuildRequest, machine: Machine, runner: RunnerName, cache: Path) -> BuildTools:
    """What this machine builds engines with.

    Raises MissingToolError when there is no GPU, one of another SM than the YAML names, no trtllm-build, another
    version of it, or no container runtime.
    """
    _refuse_other_gpu(request, machine)
    chosen = choose_runner(runner, request.release)
    if runner == "local":
        _refuse_other_version(request, machine)
    num_gpus = len(machine.gpu.devices) if machine.gpu else 0
    return BuildTools(chosen, cache / "engines", HostRoom(num_gpus, machine.memory.available_bytes))


def engine_job(role: str, request: BuildRequest, checkpoint_key: str) -> EngineJob:
    """One engine of the build; checkpoint_key is the key of its conversion."""
    return EngineJob(
        role=role,
        spec=engine_spec(role, request.config, request.sm),
        release=request.release,
        checkpoint=request.out / "checkpoints" / role,
        checkpoint_key=checkpoint_key,
        log_file=request.out / "logs" / f"engine-{role}.log",
    )


def planned_command(role: str, request: BuildRequest) -> list[str]:
    """The trtllm-build command of a role, with paths relative to the build directory.

    One worker for each rank, as on a host whose memory suffices; the build itself takes fewer when it does not.
    """
    model = request.config.models[role]
    ranks = model.tensor_parallel * model.pipeline_parallel
    paths = BuildPaths(f"checkpoints/{role}", f"engines/{role}", "timing.cache")
    return build_command(engine_spec(role, request.config, request.sm), request.release, paths, ranks)


def _refuse_other_gpu(request: BuildRequest, machine: Machine) -> None:
    if machine.gpu is None or not machine.gpu.devices:
        raise MissingToolError(
            "an engine is built on the GPU that it will run on, and this machine has none",
            "build there; --only convert makes the checkpoints here, --dry-run shows every command, "
            "--backend reference serves on a CPU",
            code="GPU-MISSING",
        )
    if request.sm is not None and machine.sm is not None and request.sm != machine.sm:
        raise MissingToolError(
            f"the YAML is for a GPU of SM {request.sm}, this machine's has SM {machine.sm}",
            "build on such a GPU, or write this one under gpu.name; engines load on no other SM",
            code="RUN-SM",
            where="gpu.name",
        )


def _refuse_other_version(request: BuildRequest, machine: Machine) -> None:
    installed = machine.tensorrt_llm
    if installed is not None and not same_release(installed, request.release.version):
        raise MissingToolError(
            f"TensorRT-LLM {installed} is installed, the YAML is for {request.release.version}",
            "--runner docker builds in the image of that version; or write the installed one under tensorrt_llm",
            code="RUN-VERSION",
            where="tensorrt_llm",
        )
