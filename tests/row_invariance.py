"""Where the engine's rows are known to be bit-equal in any company: skips the tests of it elsewhere."""

import pytest
import torch
from trtkit.reference.model.linear import can_pack


def needs_measured_processor(dtype: torch.dtype) -> None:
    """Skip unless this is a kind of processor the property was measured on: AVX-512 with bfloat16, without AMX."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX512" or torch.cpu._is_amx_tile_supported() or not can_pack(dtype, torch.device("cpu")):
        pytest.skip(f"bit equality of rows in {dtype} was not measured on this kind of processor ({capability})")
