"""Shell scripts of commands: readable, one option a line, quoted. Knows quoting, not what is run."""

import shlex
from collections.abc import Mapping, Sequence

_HEADER = "#!/bin/sh\n# {what}\nset -eu\n"


def shell_script(
    what: str, command: Sequence[str], environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> str:
    """A script that replaces itself by `command`. `before` are lines of shell that run first."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    return (
        _HEADER.format(what=what) + "".join(f"{line}\n" for line in (*exports, *before)) + f"exec {folded(command)}\n"
    )


def folded(command: Sequence[str]) -> str:
    """The command as shell text, continued on a new line before every option."""
    text = ""
    for word in command:
        separator = "" if not text else " \\\n  " if word.startswith("--") or word == ":" else " "
        text += separator + shlex.quote(word)
    return text
