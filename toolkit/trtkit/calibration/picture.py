"""A figure as a PNG file, whole or not at all. Knows no content."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from trtkit.artifacts import write_bytes


def write_picture(figure: Figure, path: Path) -> None:
    """Write the file; a disk that is full leaves nothing behind."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110, metadata={"Software": "trtkit"})
    write_bytes(path, drawn.getvalue())
