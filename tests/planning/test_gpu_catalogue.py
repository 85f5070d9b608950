"""The GPU catalogue is complete and consistent, and other GPUs can be described."""

import pytest
from trtkit.errors import ConfigError
from trtkit.planning.gpus import ALIASES, CATALOGUE, GpuModel, find_gpu, nearest_names, parse_gpu_spec

SPEC = "sm=90,memory_gb=96,bandwidth_gbps=3900,fp16_tflops=900,fp8_tflops=1800"


def test_names_are_unique() -> None:
    assert len({gpu.name for gpu in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_leads_to_a_gpu(alias: str) -> None:
    assert find_gpu(alias) is not None


@pytest.mark.parametrize("gpu", CATALOGUE, ids=lambda gpu: gpu.name)
def test_every_gpu_is_plausible(gpu: GpuModel) -> None:
    assert gpu.source
    assert (gpu.fp8_flops is not None) == (gpu.sm >= 89)
    assert gpu.fp8_flops is None or 1.9 < gpu.fp8_flops / gpu.fp16_flops < 2.1
    # Ridge points of tensor-core GPUs lie between 100 and 1000 operations per byte.
    assert 100 < gpu.fp16_flops / gpu.bandwidth_bytes_per_s < 1000


# What data sheets print with sparsity: GB/s, FP16 and FP8 TFLOP/s.
WITH_SPARSITY = {
    "a10-24gb": (600, 250, None),
    "a100-pcie-40gb": (1555, 624, None),
    "a100-sxm-40gb": (1555, 624, None),
    "a100-pcie-80gb": (1935, 624, None),
    "a100-sxm-80gb": (2039, 624, None),
    "l4-24gb": (300, 242, 485),
    "l40s-48gb": (864, 733, 1466),
    "rtx-4090-24gb": (1008, 330.4, 660.6),
    "rtx-5090-32gb": (1792, 419, 838),
    "h100-pcie-80gb": (2000, 1513, 3026),
    "h100-sxm-80gb": (3350, 1979, 3958),
    "h200-sxm-141gb": (4800, 1979, 3958),
    "gh200-96gb": (4000, 1979, 3958),
    "gh200-144gb": (4900, 1979, 3958),
    "b200-180gb": (7700, 4500, 9000),
    "jetson-agx-orin-64gb": (204.8, 85, None),
    "jetson-agx-thor-128gb": (273, 517, 1035),
}


@pytest.mark.parametrize("gpu", CATALOGUE, ids=lambda gpu: gpu.name)
def test_rates_are_half_of_what_data_sheets_print_with_sparsity(gpu: GpuModel) -> None:
    bandwidth, fp16, fp8 = WITH_SPARSITY[gpu.name]
    assert gpu.bandwidth_bytes_per_s == int(bandwidth * 1e9)
    assert gpu.fp16_flops == pytest.approx(fp16 / 2 * 1e12, rel=0.015)
    assert gpu.fp8_flops == (pytest.approx(fp8 / 2 * 1e12, rel=0.002) if fp8 else None)
    assert gpu.name.endswith(f"{gpu.memory_bytes // 10**9}gb")


def test_a_wrong_name_brings_near_ones() -> None:
    assert find_gpu("h100-sxm-80") is None
    assert "h100-sxm-80gb" in nearest_names("h100-sxm-80")


def test_a_gpu_can_be_described() -> None:
    gpu = parse_gpu_spec(SPEC)
    assert (gpu.sm, gpu.memory_bytes, gpu.bandwidth_bytes_per_s) == (90, 96 * 10**9, 3900 * 10**9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sm=90", "bandwidth_gbps, fp16_tflops missing"),
        (SPEC + ",colour=1", "colour=1 is none of its parts"),
        (SPEC + ",junk", "junk is none of its parts"),
        (SPEC.replace(",", ";"), "is none of its parts|is no number"),
        (SPEC + ",sm=80", "sm stands there twice"),
        (SPEC.replace("96", "much"), "memory_gb 'much' is no number"),
        (SPEC.replace("96", "0"), "memory_gb 0 cannot be"),
        (SPEC.replace("96", "inf"), "memory_gb inf cannot be"),
        (SPEC.replace("90", "nan", 1), "sm nan cannot be"),
        (SPEC.replace("90", "8.9", 1), "sm 8.9 cannot be"),
        (SPEC.replace("3900", "1e-12"), "bandwidth_gbps 1e-12 cannot be"),
    ],
)
def test_a_wrong_description_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_gpu_spec(text)
    assert caught.value.code == "GPU-SPEC"


def test_spaces_in_a_description_do_not_matter() -> None:
    assert parse_gpu_spec(SPEC.replace(",", " , ").replace("=", " = ")) == parse_gpu_spec(SPEC)
