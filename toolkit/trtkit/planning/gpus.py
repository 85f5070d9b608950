"""GPUs as data: memory, bandwidth, rates, SM. Knows data sheets, measures nothing."""

import difflib
from dataclasses import dataclass

from trtkit.errors import ConfigError

GB = 1_000_000_000
TERA = 1_000_000_000_000


@dataclass(frozen=True)
class GpuModel:
    """One GPU as its data sheet describes it, per GPU and without sparsity.

    memory_bytes is the advertised size in decimal gigabytes, so a little less than the driver reports.
    fp16_flops is the tensor-core rate for FP16/BF16 with FP32 accumulation; fp8_flops is None below SM 89.
    """

    name: str
    sm: int
    memory_bytes: int
    bandwidth_bytes_per_s: int
    fp16_flops: int
    fp8_flops: int | None
    source: str


def _gpu(name: str, sm: int, memory_gb: int, rates: tuple[float, float, float | None], source: str) -> GpuModel:
    """A row; rates are bandwidth in GB/s, FP16 and FP8 in TFLOP/s, dense."""
    bandwidth, fp16, fp8 = rates
    return GpuModel(
        name=name,
        sm=sm,
        memory_bytes=memory_gb * GB,
        bandwidth_bytes_per_s=int(bandwidth * GB),
        fp16_flops=int(fp16 * TERA),
        fp8_flops=None if fp8 is None else int(fp8 * TERA),
        source=source,
    )


# Data sheets state tensor-core rates with sparsity, "sparse" below; the dense rate, half of it, stands in the figures.
CATALOGUE: tuple[GpuModel, ...] = (
    _gpu("a10-24gb", 86, 24, (600, 125, None), "A10 data sheet: 600 GB/s; FP16 125, 250 sparse"),
    _gpu("a100-pcie-40gb", 80, 40, (1555, 312, None), "A100 data sheet, 40 GB: 1,555 GB/s; FP16 312, 624 sparse"),
    _gpu("a100-sxm-40gb", 80, 40, (1555, 312, None), "A100 data sheet, 40 GB: 1,555 GB/s; FP16 312, 624 sparse"),
    _gpu("a100-pcie-80gb", 80, 80, (1935, 312, None), "A100 data sheet, PCIe: 1,935 GB/s; FP16 312, 624 sparse"),
    _gpu("a100-sxm-80gb", 80, 80, (2039, 312, None), "A100 data sheet, SXM: 2,039 GB/s; FP16 312, 624 sparse"),
    _gpu("l4-24gb", 89, 24, (300, 121, 242.5), "L4 data sheet: 300 GB/s; FP16 242, FP8 485, both sparse"),
    _gpu(
        "l40s-48gb", 89, 48, (864, 362, 733), "L40S data sheet: 864 GB/s; FP16 362, 733 sparse; FP8 733, 1,466 sparse"
    ),
    _gpu(
        *("rtx-4090-24gb", 89, 24, (1008, 165.2, 330.3)),
        "Ada GPU architecture white paper, table 2: 1,008 GB/s; with FP32 accumulation FP16 165.2, FP8 330.3",
    ),
    _gpu(
        *("rtx-5090-32gb", 120, 32, (1792, 209.5, 419)),
        "RTX Blackwell architecture white paper: 1,792 GB/s; with FP32 accumulation FP16 209.5, FP8 419",
    ),
    _gpu(
        "h100-pcie-80gb", 90, 80, (2000, 756, 1513), "H100 data sheet, PCIe: 2 TB/s; FP16 1,513, FP8 3,026, both sparse"
    ),
    _gpu(
        *("h100-sxm-80gb", 90, 80, (3350, 989, 1979)),
        "H100 data sheet, SXM: 3.35 TB/s; FP16 1,979, FP8 3,958, both sparse",
    ),
    _gpu(
        *("h200-sxm-141gb", 90, 141, (4800, 989, 1979)),
        "H200 data sheet, SXM: 141 GB, 4.8 TB/s; FP16 1,979, FP8 3,958, both sparse",
    ),
    _gpu(
        *("gh200-96gb", 90, 96, (4000, 989, 1979)),
        "GH200 data sheet, 96 GB HBM3: 4 TB/s; FP16 1,979, FP8 3,958, both sparse",
    ),
    _gpu(
        *("gh200-144gb", 90, 144, (4900, 989, 1979)),
        "GH200 data sheet, 144 GB HBM3e: 4.9 TB/s; FP16 1,979, FP8 3,958, both sparse",
    ),
    _gpu(
        *("b200-180gb", 100, 180, (7700, 2250, 4500)),
        "HGX B200 data sheet, per GPU: 180 GB, 7.7 TB/s; FP16 4,500, FP8 9,000, both sparse",
    ),
    _gpu(
        *("jetson-agx-orin-64gb", 87, 64, (204.8, 42.5, None)),
        "Jetson AGX Orin technical brief: 204.8 GB/s; INT8 on the GPU 170 sparse, of which FP16 dense is a quarter",
    ),
    _gpu(
        *("jetson-agx-thor-128gb", 110, 128, (273, 258.5, 517.5)),
        "Jetson Thor data sheet, T5000: 273 GB/s; FP4 2,070, FP8 1,035, FP16 517, all sparse",
    ),
)
# Short names people write; each means the model on the right.
ALIASES = {
    "a10": "a10-24gb",
    "a100": "a100-sxm-80gb",
    "a100-40gb": "a100-sxm-40gb",
    "a100-80gb": "a100-sxm-80gb",
    "l4": "l4-24gb",
    "l40s": "l40s-48gb",
    "rtx-4090": "rtx-4090-24gb",
    "rtx-5090": "rtx-5090-32gb",
    "h100": "h100-sxm-80gb",
    "h100-pcie": "h100-pcie-80gb",
    "h100-sxm": "h100-sxm-80gb",
    "h200": "h200-sxm-141gb",
    "gh200": "gh200-96gb",
    "b200": "b200-180gb",
    "jetson-agx-orin": "jetson-agx-orin-64gb",
    "jetson-agx-thor": "jetson-agx-thor-128gb",
}
_SMALLEST, _LARGEST = 0.001, 1e9
_SPEC_KEYS = ("sm", "memory_gb", "bandwidth_gbps", "fp16_tflops", "fp8_tflops")


def find_gpu(name: str) -> GpuModel | None:
    """The GPU with this name or alias, or None."""
    wanted = name.lower().replace("_", "-")
    wanted = ALIASES.get(wanted, wanted)
    return next((gpu for gpu in CATALOGUE if gpu.name == wanted), None)


def nearest_names(name: str) -> list[str]:
    """Up to three catalogue names that look like `name`."""
    known = [gpu.name for gpu in CATALOGUE] + list(ALIASES)
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4)
    return list(dict.fromkeys(ALIASES.get(found, found) for found in close))


def parse_gpu_spec(text: str) -> GpuModel:
    """A GPU outside the catalogue: "sm=90,memory_gb=96,bandwidth_gbps=3900,fp16_tflops=900,fp8_tflops=1800".

    fp8_tflops may be left out. Raises ConfigError naming the part that is missing or wrong.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _SPEC_KEYS:
            raise _no_spec(text, f"{part} is none of its parts")
        if key in values:
            raise _no_spec(text, f"{key} stands there twice")
        values[key] = _positive(text, key, value)
    missing = [key for key in _SPEC_KEYS[:4] if key not in values]
    if missing:
        raise _no_spec(text, f"{', '.join(missing)} missing")
    return GpuModel(
        name="custom",
        sm=int(values["sm"]),
        memory_bytes=int(values["memory_gb"] * GB),
        bandwidth_bytes_per_s=int(values["bandwidth_gbps"] * GB),
        fp16_flops=int(values["fp16_tflops"] * TERA),
        fp8_flops=int(values["fp8_tflops"] * TERA) if "fp8_tflops" in values else None,
        source="--gpu-spec",
    )


def _positive(text: str, key: str, value: str) -> float:
    """The number, which is at least a thousandth, and no more than any GPU will have."""
    try:
        number = float(value)
    except ValueError:
        raise _no_spec(text, f"{key} {value!r} is no number") from None
    if not _SMALLEST <= number <= _LARGEST or (key == "sm" and number != int(number)):
        raise _no_spec(text, f"{key} {value} cannot be")
    return number


def _no_spec(text: str, problem: str) -> ConfigError:
    form = ",".join(f"{key}=..." for key in _SPEC_KEYS)
    return ConfigError(f"--gpu-spec {text!r}: {problem}", f"write {form}; the last may be left out", code="GPU-SPEC")
