"""A server in NVIDIA's image: which image, which command. Knows docker and podman by name; starts nothing."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trtkit
from trtkit.builds import Build
from trtkit.engines.release import find_release
from trtkit.errors import InputError, MissingToolError
from trtkit.launch.container import Container, run_command
from trtkit.server.endpoints import Endpoints
from trtkit.server.launch import ServerFolders, ServerOptions

Program = Literal["docker", "podman"]
PROGRAMS: tuple[Program, ...] = ("docker", "podman")
STANDIN_IN_CONTAINER = "/opt/tritonserver/backends/tensorrtllm"
_REFERENCE = "reference"
# The draft-target loop calls its own server; not every image brings the client.
_ENSURE_CLIENT = "python3 -c 'import tritonclient.grpc' 2>/dev/null || python3 -m pip install -q 'tritonclient[grpc]'"


@dataclass(frozen=True)
class ContainerRun:
    """One container to be. build is absolute; backend is the build's own.

    folders: read-only mounts at their own paths. standin: the folder with the stand-in's model.py, for a build without
    GPUs. inside: the ports of the build's YAML; endpoints: where they answer on this machine.
    """

    program: Program
    image: str
    name: str
    build: Path
    backend: str
    package: Path
    folders: tuple[str, ...]
    standin: Path
    inside: tuple[int, int, int]
    endpoints: Endpoints

    @property
    def on_gpus(self) -> bool:
        """Whether TensorRT-LLM runs in it."""
        return self.backend != _REFERENCE


def find_program(choice: str) -> Program:
    """The program that runs containers: the one chosen, or for "auto" the first that is installed.

    Raises MissingToolError when it is not.
    """
    wanted = [program for program in PROGRAMS if choice in ("auto", program)]
    for program in wanted:
        if shutil.which(program):
            return program
    raise MissingToolError(
        f"no container can be started: {' and '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} not installed",
        "install docker (with the NVIDIA container toolkit for GPUs) or podman; without one, start tritonserver "
        "yourself with the build's launch/serve.sh and use --attach",
        code="CONTAINER-TOOL",
    )


def plan_container(build: Build, program: Program, name: str, endpoints: Endpoints) -> ContainerRun:
    """What to run for a build. Raises InputError when the build's release has no image."""
    release = find_release(build.config.tensorrt_llm)
    image = release.container if release else None
    if image is None:
        raise InputError(
            f"there is no image with TensorRT-LLM {build.config.tensorrt_llm}",
            "build for a release that has one: see docs/engines.md",
            code="CONTAINER-IMAGE",
        )
    backend = str(build.manifest.get("backend", _REFERENCE))
    serving, folder = build.config.serving, build.folder.resolve()
    sources = (str(build.source("target")),) if backend == "llmapi" else ()
    return ContainerRun(
        program=program,
        image=image,
        name=name,
        build=folder,
        backend=backend,
        package=Path(trtkit.__file__).resolve().parents[1],
        folders=sources,
        standin=ServerFolders(folder).backends / "tensorrtllm",
        inside=(serving.http_port, serving.grpc_port, serving.metrics_port),
        endpoints=endpoints,
    )


def container_command(run: ContainerRun) -> list[str]:
    """The exact command. A build for GPUs runs its launch/serve.sh; another one Triton with the stand-in, no GPU."""
    at = run.endpoints
    container = Container(
        image=run.image,
        build=str(run.build),
        package=str(run.package),
        ports=run.inside,
        folders=run.folders,
        program=run.program,
        name=run.name,
        gpus=run.on_gpus,
        mounts=() if run.on_gpus else (f"{run.standin}:{STANDIN_IN_CONTAINER}",),
        publish=tuple(f"{at.host}:{port}" for port in (at.http_port, at.grpc_port, at.metrics_port)),
    )
    start = "exec sh launch/serve.sh" if run.on_gpus else "exec " + " ".join(_standin_server(run.inside))
    return run_command(container, {}, ["sh", "-c", f"{_ENSURE_CLIENT}; {start}"])


def stop_command(run: ContainerRun, options: ServerOptions) -> list[str]:
    """SIGTERM, and after the drain time SIGKILL."""
    return [run.program, "stop", "--time", str(max(1, round(options.drain_s))), run.name]


def _standin_server(ports: Sequence[int]) -> list[str]:
    """Models are loaded one after another from outside: several Python models at once crash a server now and then."""
    http, grpc, metrics = ports
    return [
        "tritonserver",
        "--model-repository=model_repository",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        "--allow-gpu-metrics=false",
    ]
