"""Lines of shell that stop a server on a machine that its build is not for, before anything starts. Runs nothing.

Engines load in one release and on one SM only, and the YAML of the LLM API has the keys of one release; the server's
own message about it is a serialization tag or an unknown key. Needs python3 and, for the SM, nvidia-smi.
"""

from collections.abc import Sequence

_ASK_VERSION = 'from importlib.metadata import version; print(version("tensorrt-llm"))'
_ASK_SM = "nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\\n' ' '"
_EXIT_CODE = 3


def guard_lines(version: str, image: str | None, sm: int | None) -> Sequence[str]:
    """What serve.sh checks first. image: the one with this version; sm: of the engines, None without engines or GPU.

    A container's fourth number and a local suffix belong to the same release ("1.0.3.2510", "1.2.1+cu131").
    """
    remedy = f"; run it in {image}" if image else "; build again with the installed one"
    lines = [
        f"installed=$(python3 -c '{_ASK_VERSION}' 2>/dev/null || echo none)",
        'case "$installed" in',
        f"  {version}|{version}.[0-9]*|{version}+*) ;;",
        f'  *) echo "RUN-VERSION: this build is for TensorRT-LLM {version}, this machine has $installed{remedy}" >&2',
        f"     exit {_EXIT_CODE} ;;",
        "esac",
    ]
    if sm is None:
        return lines
    return [
        *lines,
        f"here=$({_ASK_SM})",
        'case " $here" in',
        f'  " "|*" {sm} "*) ;;',
        f'  *) echo "RUN-SM: the engines are for SM {sm}, this machine has SM ${{here% }}; build on such a GPU" >&2',
        f"     exit {_EXIT_CODE} ;;",
        "esac",
    ]
