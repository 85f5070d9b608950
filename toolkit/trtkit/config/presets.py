"""The presets that ship with trtkit. Knows where they lie, in a checkout and in an installation."""

import difflib
import sysconfig
from pathlib import Path

from trtkit.artifacts import write_text
from trtkit.errors import ConfigError

_CHECKOUT = Path(__file__).resolve().parents[3] / "build_configs"
_INSTALLED = Path(sysconfig.get_path("data")) / "share" / "trtkit" / "build_configs"


def presets() -> dict[str, Path]:
    """Preset name -> its YAML."""
    folder = _CHECKOUT if _CHECKOUT.is_dir() else _INSTALLED
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def copy_preset(name: str, folder: Path) -> Path:
    """Copy a preset into `folder` and return the new file. Raises ConfigError; never overwrites."""
    known = presets()
    if name not in known:
        near = difflib.get_close_matches(name.removesuffix(".yaml").lower(), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"no preset {name}", f"{hint}choose one of: {', '.join(known)}", code="PRESET")
    out = folder / f"{name}.yaml"
    if out.exists():
        raise ConfigError(f"{out} exists already", "edit it, delete it, or choose another --to", code="PRESET")
    write_text(out, known[name].read_text(encoding="utf-8"))
    return out


def describe(path: Path) -> str:
    """The comment that a preset opens with."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
