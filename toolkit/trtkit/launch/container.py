"""docker (or podman) run around a command, with the build directory inside. Knows options of the runtime only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BUILD_IN_CONTAINER = "/build"
PACKAGE_IN_CONTAINER = "/opt/trtkit"


@dataclass(frozen=True)
class Container:
    """One container. build and package are host folders: the build directory, and the one that holds `trtkit/`.

    The package is mounted, not installed: trtkit.serving needs only what the image has (numpy, tokenizers).
    folders are further host folders, mounted read-only at their own paths (checkpoints for the LLM API), mounts others
    as "host:inside". publish has where each port answers on the host ("address:port"); empty is everywhere, same port.
    """

    image: str
    build: str
    package: str
    ports: tuple[int, ...]
    folders: tuple[str, ...] = ()
    program: str = "docker"
    name: str = ""
    gpus: bool = True
    mounts: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()


def run_command(container: Container, environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The whole command. Workers of one model share memory and pin it, hence --ipc and the two limits."""
    gpus = ["--gpus", "all"] if container.program == "docker" else ["--device", "nvidia.com/gpu=all"]
    name = ["--name", container.name] if container.name else []
    publish = container.publish or tuple(str(port) for port in container.ports)
    variables = {"PYTHONPATH": PACKAGE_IN_CONTAINER, **environment}
    mounts = [f"{container.build}:{BUILD_IN_CONTAINER}", f"{container.package}:{PACKAGE_IN_CONTAINER}:ro"]
    mounts += [f"{folder}:{folder}:ro" for folder in container.folders]
    mounts += [f"{mount}:ro" for mount in container.mounts]
    return [
        *(container.program, "run", "--rm", *name, *(gpus if container.gpus else ())),
        *("--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
        *(
            word
            for place, port in zip(publish, container.ports, strict=True)
            for word in ("--publish", f"{place}:{port}")
        ),
        *(word for mount in mounts for word in ("--volume", mount)),
        *("--workdir", BUILD_IN_CONTAINER),
        *(word for name, value in variables.items() for word in ("--env", f"{name}={value}")),
        *(container.image, *command),
    ]
