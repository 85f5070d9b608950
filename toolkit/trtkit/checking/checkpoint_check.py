"""Checks the weight files of a Hugging Face checkpoint from their headers. Knows no architecture."""

from pathlib import Path

from trtkit.checking.deployment import finding_of
from trtkit.checkpoints.weights import open_weights
from trtkit.errors import CheckpointError
from trtkit.findings import Finding


def check_weights(folder: Path) -> list[Finding]:
    """The finding for the first thing that is wrong with the safetensors files, or nothing."""
    try:
        open_weights(folder)
    except CheckpointError as error:
        return [finding_of(error, str(folder))]
    return []
