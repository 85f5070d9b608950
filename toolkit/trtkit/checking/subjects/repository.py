"""Repository: the models of a Triton repository as records, and the engines they point at. Judges nothing.

Reads any repository, also one that trtkit did not write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.checking.raised import finding_of
from trtkit.checking.subjects.engine import EngineFolder, read_engine_folder
from trtkit.checking.subjects.llm_yaml import read_llm_yaml
from trtkit.errors import InputError
from trtkit.findings import Finding

_DTYPES = (
    "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16".split()
)  # DataType of model_config.proto, by number
FILE = "config.pbtxt"
TARGET, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"


@dataclass(frozen=True)
class Port:
    """One input or output as declared; dims without the batch axis."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Step:
    """One step of an ensemble: the model's tensor -> the ensemble's tensor, both ways."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class TritonModel:
    """One model folder with its parsed config.pbtxt; versions are its numbered folders, llm is model.yaml."""

    folder: Path
    name: str
    backend: str
    max_batch_size: int
    decoupled: bool
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: Mapping[str, str]
    steps: tuple[Step, ...]
    instances: int
    ordered: bool
    versions: tuple[Path, ...]
    llm: Mapping[str, Any] | None

    @property
    def path(self) -> Path:
        """Its config.pbtxt."""
        return self.folder / FILE

    @property
    def runs_engine(self) -> bool:
        """Whether it is a `tensorrt_llm` model by its backend, or by the parameter that only those have."""
        return self.backend == "tensorrtllm" or "gpt_model_type" in self.parameters

    @property
    def has_program(self) -> bool:
        """Whether every version folder has a model.py."""
        return bool(self.versions) and all((version / "model.py").is_file() for version in self.versions)

    def place(self, key: str) -> str:
        """A key of its config.pbtxt as findings name it."""
        return f"{self.folder.name}/{FILE}:{key}"

    def parameter(self, key: str) -> str | None:
        """A parameter; one left empty or as a placeholder counts as unset, as in the backend."""
        value = self.parameters.get(key, "")
        return value if value and not value.startswith("${") else None


@dataclass(frozen=True)
class Repository:
    """A repository. engines maps the LLM models to the engine directory they name, where that is on this disk."""

    folder: Path
    models: Mapping[str, TritonModel]
    engines: Mapping[str, EngineFolder]

    @property
    def base(self) -> Path:
        """What relative paths in config.pbtxt are relative to: the build directory around the repository."""
        return self.folder.parent

    @property
    def llm_models(self) -> list[TritonModel]:
        """The models that TensorRT-LLM runs, in C++ or in Python; NVIDIA's preprocessing may name an engine as well."""
        return [model for model in self.models.values() if model.runs_engine]

    @property
    def target(self) -> TritonModel | None:
        """The model whose answers are served: the one the BLS names, else `tensorrt_llm`."""
        return self.models.get(self._named("tensorrt_llm_model_name") or TARGET)

    @property
    def draft(self) -> TritonModel | None:
        """The model that proposes, when there is one."""
        return self.models.get(self._named("tensorrt_llm_draft_model_name") or DRAFT)

    def resolve(self, path: str) -> Path:
        """A path of a parameter on this disk."""
        return Path(path) if Path(path).is_absolute() else self.base / path

    def _named(self, key: str) -> str | None:
        bls = self.models.get(BLS)
        return bls.parameter(key) if bls else None


def read_repository(folder: Path) -> tuple[Repository, list[Finding]]:
    """Every model of a repository, and a finding for each config.pbtxt or engine that could not be read."""
    # Here, because it loads tritonclient and with it gRPC, which no other check needs.
    from trtkit.repository.pbtxt import read_config

    problems: list[Finding] = []
    models: dict[str, TritonModel] = {}
    for path in sorted(folder.glob(f"*/{FILE}")):
        try:
            models[path.parent.name] = _model(path.parent, read_config(path))
        except InputError as error:
            problems.append(finding_of(error, str(path)))
    bare = Repository(folder, models, {})
    engines: dict[str, EngineFolder] = {}
    for model in bare.llm_models:
        named = model.parameter("gpt_model_path")
        if named is not None and bare.resolve(named).is_dir():
            try:
                engines[model.name] = read_engine_folder(bare.resolve(named))
            except InputError as error:
                problems.append(finding_of(error, str(model.path)))
    return Repository(folder, models, engines), problems


def _model(folder: Path, message: Any) -> TritonModel:
    versions = tuple(sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()))
    return TritonModel(
        folder=folder,
        name=message.name or folder.name,
        backend=message.backend or message.platform,
        max_batch_size=message.max_batch_size,
        decoupled=message.model_transaction_policy.decoupled,
        inputs=tuple(Port(p.name, _dtype(p), tuple(p.dims), p.optional) for p in message.input),
        outputs=tuple(Port(p.name, _dtype(p), tuple(p.dims)) for p in message.output),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        steps=tuple(
            Step(step.model_name, dict(step.input_map), dict(step.output_map))
            for step in message.ensemble_scheduling.step
        ),
        instances=max([group.count or 1 for group in message.instance_group], default=1),
        ordered=bool(message.dynamic_batching.preserve_ordering),
        versions=versions,
        llm=read_llm_yaml(versions[-1]) if versions else None,
    )


def _dtype(port: Any) -> str:
    return _DTYPES[int(port.data_type)]
