"""The launch/ folder of a build for GPUs: how its server is started, and the files that do it. Pure but `write`."""

from collections.abc import Mapping
from pathlib import Path

import trtkit
from trtkit.artifacts import write_text
from trtkit.config.schema import Model
from trtkit.engines.llmapi import serve_command, serve_yaml
from trtkit.engines.placement import hands_logits_over
from trtkit.launch.container import Container
from trtkit.launch.files import CONTAINER, SERVE, build_script, launch_files
from trtkit.launch.guard import guard_lines
from trtkit.launch.mode import Launch, Ranks, launch_engines, launch_llmapi
from trtkit.launch.script import shell_script
from trtkit.launch.triton import TritonServer
from trtkit.pipeline.engine_backend import planned_command
from trtkit.pipeline.llmapi_backend import llmapi_spec, local_folders
from trtkit.pipeline.request import BuildRequest

FOLDER = "launch"
BUILD_ENGINES = "build-engines.sh"
TRTLLM_SERVE_YAML = "trtllm-serve.yaml"
TRTLLM_SERVE = "trtllm-serve.sh"
LAUNCH_FILES = frozenset({SERVE, CONTAINER, BUILD_ENGINES, TRTLLM_SERVE_YAML, TRTLLM_SERVE})


def server_launch(request: BuildRequest) -> Launch | None:
    """How the server of this build is started with GPUs; None for the reference backend, which trtkit serve starts."""
    config = request.config
    serving = config.serving
    server = TritonServer("model_repository", serving.http_port, serving.grpc_port, serving.metrics_port)
    if config.backend == "llmapi":
        return launch_llmapi(server, _llmapi_environment(request))
    if config.backend != "engine":
        return None
    ranks = Ranks(_ranks(config.target), _ranks(config.draft) if config.draft else 0)
    num_gpus = config.gpu.count if config.gpu else max(ranks.target, ranks.draft)
    return launch_engines(ranks, server, num_gpus, fast_logits=hands_logits_over(config))


def _llmapi_environment(request: BuildRequest) -> Mapping[str, str]:
    """What the release wants in the environment for a model over several pipeline stages."""
    api = request.release.llm_api
    return api.pipeline_environment if api and request.config.target.pipeline_parallel > 1 else {}


def launch_texts(request: BuildRequest) -> dict[str, str]:
    """File name below launch/ -> text; nothing for the reference backend."""
    launch = server_launch(request)
    if launch is None:
        return {}
    sm = request.sm if request.config.backend == "engine" else None
    guard = guard_lines(request.release.version, request.release.container, sm)
    files = launch_files(launch, _container(request), guard)
    if request.config.backend == "engine":
        files[BUILD_ENGINES] = build_script({role: planned_command(role, request) for role in request.config.models})
    else:
        files |= _trtllm_serve(request)
    return dict(sorted(files.items()))


def write_launch(request: BuildRequest) -> None:
    """Write launch/ and take away what another backend left there; a running server's own records stay."""
    texts = launch_texts(request)
    for name in LAUNCH_FILES - texts.keys():
        (request.out / FOLDER / name).unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(request.out / FOLDER / name, text)


def _trtllm_serve(request: BuildRequest) -> dict[str, str]:
    """The same model behind NVIDIA's OpenAI-compatible server."""
    spec = llmapi_spec(request)
    port = request.config.serving.http_port
    command = serve_command(spec, request.release, f"{FOLDER}/{TRTLLM_SERVE_YAML}", port)
    script = shell_script("the same model behind trtllm-serve", command, before=['cd "$(dirname "$0")/.."'])
    return {TRTLLM_SERVE_YAML: serve_yaml(spec, request.release), TRTLLM_SERVE: script}


def _container(request: BuildRequest) -> Container | None:
    image = request.image or request.release.container
    if image is None:
        return None
    serving = request.config.serving
    return Container(
        image=image,
        build=str(request.out.resolve()),
        package=str(Path(trtkit.__file__).resolve().parents[1]),
        ports=(serving.http_port, serving.grpc_port, serving.metrics_port),
        folders=local_folders(request) if request.config.backend == "llmapi" else (),
    )


def _ranks(model: Model) -> int:
    return model.tensor_parallel * model.pipeline_parallel
