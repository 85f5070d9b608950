"""BuiltFor: what a finished build was made for, so that it can be held against a machine. Knows the manifest."""

from contextlib import suppress
from dataclasses import dataclass

from trtkit.builds import Build
from trtkit.doctor import Machine
from trtkit.engines.inspect import read_engine
from trtkit.errors import InputError
from trtkit.planning.gpus import find_gpu


@dataclass(frozen=True)
class BuiltFor:
    """One build and the machine it is to run on. sm is that of the GPU the build names, None when it names none."""

    build: Build
    machine: Machine

    @property
    def backend(self) -> str:
        """The backend that was built for: never "auto"."""
        return str(self.build.manifest["backend"])

    @property
    def version(self) -> str:
        """The TensorRT-LLM version of the artifacts."""
        return str(self.build.manifest["tensorrt_llm"])

    @property
    def engine_versions(self) -> dict[str, str]:
        """Role -> the TensorRT-LLM that its engine was built by, for the engines that can be read."""
        versions = {}
        for role in self.build.config.models if self.backend == "engine" else ():
            with suppress(InputError):
                versions[role] = read_engine(self.build.folder / "engines" / role).version
        return versions

    @property
    def sm(self) -> int | None:
        """The SM that the engines were built on: recorded by the build, else that of the GPU in the YAML."""
        recorded = self.build.manifest.get("sm")
        gpu = find_gpu(self.build.config.gpu.name) if self.build.config.gpu else None
        return recorded if isinstance(recorded, int) else gpu.sm if gpu else None
