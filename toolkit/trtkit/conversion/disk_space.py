"""Whether a converted checkpoint will fit on the disk. Knows sizes, writes nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

from trtkit.conversion.encoding import Encoders
from trtkit.conversion.hf_fp8 import hf_fp8_headers
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.rank_writer import file_bytes
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.source_states import SourceStates
from trtkit.errors import MissingToolError

_SPARE_BYTES = 16 << 20
_RANK_FILES = ("rank*.safetensors", ".rank*.safetensors.partial")


def check_disk(plan: ConversionPlan, out: Path, scratch: Path) -> None:
    """Raise MissingToolError DISK-SPACE when the files will not fit beside what is there.

    scratch: where `out` is written; rank files that an interrupted run left there need no room of their own: they are
    kept, or removed before others are written. What lies anywhere else stays.

    Asking for every header also finds what the encoders cannot do, before anything is written.
    """
    needed = _output_bytes(plan) + _SPARE_BYTES
    left = (file for pattern in _RANK_FILES for file in scratch.glob(pattern) if file.is_file())
    free = shutil.disk_usage(existing(out)).free + sum(file.stat().st_size for file in left)
    if needed > free:
        raise MissingToolError(
            f"the converted checkpoint needs {needed / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free",
            "free space, or choose another OUT",
            code="DISK-SPACE",
            where=str(out),
        )


def _output_bytes(plan: ConversionPlan) -> int:
    """Bytes of the files; for modelopt, which quantises by itself, those without quantisation."""
    source = SourceFiles(plan.weights, plan.names, SourceStates(()))  # never opened
    by_modelopt = plan.options.quantization in MODELOPT_QUANTIZATIONS
    if plan.options.output_format == "hf" and not by_modelopt:
        return file_bytes(hf_fp8_headers(plan, source))
    unquantized = replace(plan.options, quantization="none", output_format="tensorrt_llm")
    sized = replace(plan, options=unquantized) if by_modelopt else plan
    encoders = Encoders(sized, source)
    return sum(
        file_bytes([h for target in targets for h in encoders(target).headers(target)]) for targets in plan.targets
    )


def existing(folder: Path) -> Path:
    """`folder`, or the nearest of its parents that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
