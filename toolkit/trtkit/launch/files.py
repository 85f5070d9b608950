"""The launch/ folder of a build for GPUs: scripts that start the server, bare and in a container. Pure."""

from collections.abc import Mapping, Sequence

from trtkit.launch.container import Container, run_command
from trtkit.launch.mode import Launch
from trtkit.launch.script import folded, shell_script

SERVE = "serve.sh"
CONTAINER = "serve-container.sh"
# Triton's llmapi model is NVIDIA's; it lies in every image, and the server wants it inside the repository.
_LLMAPI_MODEL = "/app/all_models/llmapi/tensorrt_llm/1"


def launch_files(launch: Launch, container: Container | None, guard: Sequence[str] = ()) -> dict[str, str]:
    """File name -> text. The container script runs the bare one inside; it is absent when there is no image.

    guard: lines of shell that refuse a machine the build is not for.
    """
    before = [*_at_the_build(), *guard, *(_fetch_llmapi_model() if launch.mode == "plain" else ())]
    bare = shell_script(f"{launch.mode} mode: {launch.reason}", launch.command, launch.environment, before)
    files = {SERVE: bare}
    if container is not None:
        command = run_command(container, {}, ["sh", f"launch/{SERVE}"])
        files[CONTAINER] = shell_script(f"the server in {container.image}", command)
    return files


def build_script(commands: Mapping[str, Sequence[str]]) -> str:
    """build-engines.sh: the exact trtllm-build commands by role, for those who run them by hand."""
    body = "\n".join(f"# {role}\n{folded(command)}\n" for role, command in commands.items())
    return "#!/bin/sh\n# the commands that trtkit build runs, paths relative to the build directory\nset -eu\n" + body


def _at_the_build() -> list[str]:
    return ['cd "$(dirname "$0")/.."']


def _fetch_llmapi_model() -> list[str]:
    here = "model_repository/tensorrt_llm/1"
    return [f"for file in model.py helpers.py; do [ -e {here}/$file ] || cp {_LLMAPI_MODEL}/$file {here}/; done"]
