"""What the environment variables decide; read here and nowhere below."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """TRTKIT_CACHE, else the user's cache directory (XDG_CACHE_HOME or ~/.cache) plus trtkit."""
    explicit = os.environ.get("TRTKIT_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtkit"


def program_environment() -> dict[str, str]:
    """The environment of a program that trtkit starts for the user, such as docker: the user's own."""
    return dict(os.environ)
