"""Files that a build's YAML names under `verification`. Knows the config, reads none of them."""

from pathlib import Path
from typing import Literal

from trtkit.builds import Build
from trtkit.errors import InputError


def configured_file(build: Build | None, name: Literal["prompts", "baseline"], *, is_made: bool = False) -> Path | None:
    """The file, or None where the YAML names none; relative to the working directory, as every path of a YAML.

    is_made: it need not be there. Raises InputError where it is not: the command may run elsewhere than the build did.
    """
    named = getattr(build.config.verification, name) if build is not None else None
    if named is None:
        return None
    path = Path(named)
    if not (is_made or path.exists()):
        raise InputError(
            f"verification.{name} of the build names {named}, which is not in {Path.cwd()}",
            f"run this where the build's YAML is used, or give another file with --{name}",
            code=name.upper(),
            where=named,
        )
    return path
