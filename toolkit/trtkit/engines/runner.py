"""Runs a build command on this machine or in the release's container. Knows processes and mounts, not engines."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtkit.engines.release import Release
from trtkit.errors import MissingToolError

RunnerName = Literal["local", "docker"]
_CONTAINER_PROGRAMS = ("docker", "podman")
_STOP_TIMEOUT_S = 20
_ASK_TIMEOUT_S = 30


@dataclass(frozen=True)
class Runner:
    """Where trtllm-build runs. program is the container runtime for "docker" (docker or podman), else None."""

    name: RunnerName
    program: str | None = None
    image: str | None = None


def choose_runner(name: RunnerName, release: Release, search_path: str | None = None) -> Runner:
    """The runner by its name. Raises MissingToolError when trtllm-build, the runtime or an image is missing.

    `search_path` replaces PATH.
    """
    if name == "local":
        if shutil.which("trtllm-build", path=search_path) is None:
            raise MissingToolError(
                "trtllm-build is not on PATH",
                f"use --runner docker, install TensorRT-LLM {release.version}, or --backend reference for a CPU",
                code="TRTLLM-BUILD",
            )
        return Runner("local")
    program = next((found for found in _CONTAINER_PROGRAMS if shutil.which(found, path=search_path)), None)
    if program is None:
        raise MissingToolError(
            "neither docker nor podman is on PATH", "install one of them, or use --runner local", code="CONTAINER"
        )
    if release.container is None:
        raise MissingToolError(
            f"there is no Triton image with TensorRT-LLM {release.version}",
            "use --runner local",
            code="CONTAINER-IMAGE",
        )
    return Runner("docker", program, release.container)


def wrapped(command: Sequence[str], runner: Runner, mounts: Sequence[Path]) -> list[str]:
    """`command` as it is started: itself, or in the container with every folder of `mounts` at its own path."""
    if runner.name == "local":
        return list(command)
    assert runner.program is not None and runner.image is not None, "a docker runner has a program and an image"
    volumes = [word for folder in mounts for word in ("--volume", f"{folder}:{folder}")]
    gpus = ["--gpus", "all"] if runner.program == "docker" else ["--device", "nvidia.com/gpu=all"]
    limits = ["--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    return [runner.program, "run", "--rm", *gpus, *limits, *volumes, runner.image, *command]


def pinned_image(runner: Runner) -> str | None:
    """The runner's image by its digest (name@sha256:...), as the container runtime knows it once it is pulled.

    None without a container, and for an image that came from no registry.
    """
    if runner.program is None or runner.image is None:
        return None
    command = [runner.program, "image", "inspect", "--format", "{{json .RepoDigests}}", runner.image]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=True)
        names = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return next((name for name in names or () if isinstance(name, str)), None)


def run_logged(command: Sequence[str], log_file: Path, on_line: Callable[[str], None]) -> int:
    """Run, write everything it says to `log_file`, call on_line for every line, return the exit code.

    An interruption of trtkit interrupts the command, waits for it, and is raised again. 127 means that the program
    could not be started.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("w", encoding="utf-8", errors="replace") as log:
        log.write("$ " + " ".join(command) + "\n")
        log.flush()
        try:
            process = subprocess.Popen(
                list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        except OSError as error:
            log.write(f"{error}\n")
            return 127
        assert process.stdout is not None, "stdout was asked for as a pipe"
        with process.stdout:
            try:
                for line in process.stdout:
                    log.write(line)
                    on_line(line)
                return process.wait()
            except BaseException:
                _stop(process)
                raise


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
