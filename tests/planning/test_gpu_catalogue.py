"""The GPU catalogue is complete and consistent, and other GPUs can be described."""

import pytest
from trtkit.errors import ConfigError
from trtkit.planning.gpus import ALIASES, CATALOGUE, find_gpu, nearest_names, parse_gpu_spec

SPEC = "sm=90,memory_gb=96,bandwidth_gbps=3900,fp16_tflops=900,fp8_tflops=1800"


def test_names_are_unique() -> None:
    assert len({gpu.name for gpu in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_leads_to_a_gpu(alias: str) -> None:
    assert find_gpu(alias) is not None


@pytest.mark.parametrize("gpu", CATALOGUE, ids=lambda gpu: gpu.name)
def test_every_gpu_is_plausible(gpu: object) -> None:
    from trtkit.planning.gpus import GpuModel

    assert isinstance(gpu, GpuModel)
    assert gpu.source
    assert (gpu.fp8_flops is not None) == (gpu.sm >= 89)
    assert gpu.fp8_flops is None or 1.9 < gpu.fp8_flops / gpu.fp16_flops < 2.1
    # Ridge points of tensor-core GPUs lie between 100 and 1000 operations per byte.
    assert 100 < gpu.fp16_flops / gpu.bandwidth_bytes_per_s < 1000


def test_a_wrong_name_brings_near_ones() -> None:
    assert find_gpu("h100-sxm-80") is None
    assert "h100-sxm-80gb" in nearest_names("h100-sxm-80")


def test_a_gpu_can_be_described() -> None:
    gpu = parse_gpu_spec(SPEC)
    assert (gpu.sm, gpu.memory_bytes, gpu.bandwidth_bytes_per_s) == (90, 96 * 10**9, 3900 * 10**9)


@pytest.mark.parametrize("text", ["sm=90", SPEC + ",colour=1", SPEC.replace("96", "much"), SPEC.replace("96", "0")])
def test_a_wrong_description_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--gpu-spec"):
        parse_gpu_spec(text)
