"""`trtkit init`."""

import shlex
from pathlib import Path

import click

from trtkit.cli.output import Output, with_output
from trtkit.config.presets import copy_preset, describe, presets
from trtkit.errors import ConfigError


@click.command()
@click.argument("preset", required=False)
@click.option("--to", "folder", default="configs", type=click.Path(file_okay=False, path_type=Path), show_default=True)
@click.option("--list", "listing", is_flag=True, help="List the presets.")
@with_output
def command(output: Output, preset: str | None, folder: Path, listing: bool) -> None:
    """Copy PRESET into a folder, to edit it there."""
    if listing:
        known = {name: describe(path) for name, path in presets().items()}
        output.result({"schema": "trtkit.init/1", "presets": known}, "\n".join(f"{n}  {d}" for n, d in known.items()))
        return
    if preset is None:
        raise ConfigError("no preset named", "trtkit init --list shows them", code="PRESET")
    out = copy_preset(preset, folder)
    output.result({"schema": "trtkit.init/1", "config": str(out)}, f"{out}\nnext  trtkit build {shlex.quote(str(out))}")
