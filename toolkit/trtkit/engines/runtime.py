"""Opens a built engine with TensorRT and says what is in it. The one importer of tensorrt and tensorrt_llm.

Everything else reads config.json; this needs the release that built the engine, and its GPU.
"""

import importlib.util
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.engines.inspect import EngineInfo, check_rank_files
from trtkit.errors import BuildError, InputError, MissingToolError


@dataclass(frozen=True)
class RankSummary:
    """One rank's engine file.

    layers: kind of layer -> how many. tensors: name of an input or output -> its type and dimensions, -1 where it
    varies. precisions: type -> how many of the layers' outputs have it; empty for engines that were built without
    detailed verbosity. device_bytes: activation memory that an execution context takes.
    """

    rank: int
    file_bytes: int
    device_bytes: int
    layers: Mapping[str, int]
    precisions: Mapping[str, int]
    tensors: Mapping[str, str]


def can_open() -> bool:
    """Whether TensorRT and TensorRT-LLM are installed here; imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("tensorrt", "tensorrt_llm"))


def summarise_engine(info: EngineInfo) -> list[RankSummary]:
    """Open every rank's engine of `info`.

    Raises MissingToolError when TensorRT or TensorRT-LLM is not installed, InputError when rank files are missing or
    it is a reference engine, BuildError when TensorRT refuses an engine (another version or GPU).
    """
    if info.checkpoint is not None:
        raise InputError(
            f"a reference engine has no engine file; it executes {info.checkpoint}",
            "check that checkpoint, or leave out --open",
            code="ENGINE-REFERENCE",
            where=str(info.folder),
        )
    check_rank_files(info)
    trt = _import_tensorrt(info.version)
    return [_summarise(trt, info, rank) for rank in range(info.world_size)]


def _import_tensorrt(version: str) -> Any:
    """tensorrt, with TensorRT-LLM's plugins registered: engines hold them."""
    try:
        import tensorrt
        import tensorrt_llm  # noqa: F401
    except ImportError as error:
        raise MissingToolError(
            f"{error.name} is not installed, and the engine can only be opened with it",
            f"run this in the image of TensorRT-LLM {version}, or install that version and its TensorRT",
            code="TENSORRT",
        ) from None
    return tensorrt


def _summarise(trt: Any, info: EngineInfo, rank: int) -> RankSummary:
    path = info.folder / f"rank{rank}.engine"
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise BuildError(
            f"TensorRT {trt.__version__} cannot open {path.name}; it was built by TensorRT-LLM {info.version}",
            "open it with the version, and on the kind of GPU, that built it; or build it again",
            code="RUN-VERSION",
            where=str(path),
        )
    inspector = engine.create_engine_inspector()
    document = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    layers = document["Layers"]
    return RankSummary(
        rank=rank,
        file_bytes=path.stat().st_size,
        device_bytes=_device_bytes(engine),
        layers=dict(Counter(map(_kind_of, layers)).most_common()),
        precisions=dict(Counter(kind for layer in layers for kind in _precisions_of(layer)).most_common()),
        tensors=_tensors_of(engine),
    )


def _device_bytes(engine: Any) -> int:
    """TensorRT 10.1 replaced the 32-bit property by one with a suffix."""
    return int(getattr(engine, "device_memory_size_v2", None) or engine.device_memory_size)


def _kind_of(layer: Any) -> str:
    """The layer's type where the engine was built with detailed verbosity, else the first word of its name."""
    if isinstance(layer, dict):
        return str(layer.get("LayerType", "unknown"))
    return str(layer).split("/")[0].split(" ")[0] or "unnamed"


def _precisions_of(layer: Any) -> list[str]:
    outputs = layer.get("Outputs", []) if isinstance(layer, dict) else []
    return [str(output["Format/Datatype"]) for output in outputs if "Format/Datatype" in output]


def _tensors_of(engine: Any) -> dict[str, str]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return {
        name: f"{str(engine.get_tensor_dtype(name)).rpartition('.')[2]}{list(engine.get_tensor_shape(name))}"
        for name in names
    }
