"""Opening an engine with TensorRT: the error without it, and the summary of what its API answers."""

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.runtime import summarise_engine
from trtkit.engines.spec import EngineSpec
from trtkit.errors import BuildError, InputError, MissingToolError


@pytest.fixture
def info(tmp_path: Path) -> EngineInfo:
    (tmp_path / "rank0.engine").write_bytes(b"12345")
    spec = EngineSpec(max_batch_size=1, max_input_len=8, max_seq_len=16)
    return EngineInfo(
        tmp_path, "1.2.1", "LlamaForCausalLM", "bfloat16", 320, 1, spec, None, rank_files=("rank0.engine",)
    )


def test_without_tensorrt_the_error_names_the_image(info: EngineInfo) -> None:
    with pytest.raises(MissingToolError, match="tensorrt is not installed") as error:
        summarise_engine(info)
    assert error.value.exit_code == 3 and "image of TensorRT-LLM 1.2.1" in error.value.fix


def test_missing_ranks_are_named_before_anything_is_imported(info: EngineInfo) -> None:
    with pytest.raises(InputError, match=r"rank1\.engine"):
        summarise_engine(dataclasses.replace(info, world_size=2))


class TensorRtApi:
    """The calls of TensorRT 10 that the summary makes, answering for one small engine."""

    __version__ = "10.14.1.48"

    class Logger:
        ERROR = 1

        def __init__(self, level: int) -> None:
            self.level = level

    class LayerInformationFormat:
        JSON = 1

    device_memory_size_v2 = 4096
    num_io_tensors = 1

    def __init__(self, layers: list[Any] | None) -> None:
        self.layers = layers

    def Runtime(self, logger: object) -> "TensorRtApi":
        return self

    def deserialize_cuda_engine(self, data: bytes) -> "TensorRtApi | None":
        return self if self.layers is not None else None

    def create_engine_inspector(self) -> "TensorRtApi":
        return self

    def get_engine_information(self, form: int) -> str:
        return json.dumps({"Layers": self.layers})

    def get_tensor_name(self, index: int) -> str:
        return "input_ids"

    def get_tensor_dtype(self, name: str) -> str:
        return "DataType.INT32"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,)


def install(monkeypatch: pytest.MonkeyPatch, layers: list[Any] | None) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", TensorRtApi(layers))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tensorrt_llm", ModuleType("tensorrt_llm"))


def test_an_engine_built_with_detail_names_layers_and_precisions(
    info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp8 = {"LayerType": "gemm", "Outputs": [{"Format/Datatype": "FP8"}]}
    install(monkeypatch, [fp8, fp8, {"LayerType": "PluginV3", "Outputs": [{"Format/Datatype": "BFloat16"}]}])
    (summary,) = summarise_engine(info)
    assert (summary.file_bytes, summary.device_bytes) == (5, 4096)
    assert summary.layers == {"gemm": 2, "PluginV3": 1}
    assert summary.precisions == {"FP8": 2, "BFloat16": 1}
    assert summary.tensors == {"input_ids": "INT32[-1]"}


def test_an_engine_built_with_names_only_still_counts_its_layers(
    info: EngineInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ["LlamaForCausalLM/transformer/layers/0/attention", "LlamaForCausalLM/lm_head"])
    (summary,) = summarise_engine(info)
    assert summary.layers == {"LlamaForCausalLM": 2} and summary.precisions == {}


def test_an_engine_of_another_version_is_explained(info: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    with pytest.raises(BuildError, match=r"TensorRT 10\.14\.1\.48 cannot open rank0\.engine"):
        summarise_engine(info)


def test_a_reference_engine_has_nothing_to_open(info: EngineInfo) -> None:
    with pytest.raises(InputError, match="executes /checkpoint") as error:
        summarise_engine(dataclasses.replace(info, checkpoint=Path("/checkpoint")))
    assert error.value.code == "ENGINE-REFERENCE"
