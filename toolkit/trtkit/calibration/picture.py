"""A figure as a PNG file, whole or not at all. Knows no content."""

import io
import os
from pathlib import Path

from matplotlib.figure import Figure


def write_picture(figure: Figure, path: Path) -> None:
    """Write beside, under a name of this process alone, then rename; a disk that is full leaves nothing behind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, metadata={"Software": "trtkit"})
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(drawn.getvalue())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
