"""`trtkit export`."""

from dataclasses import replace
from pathlib import Path

import click

from trtkit.artifacts import write_text
from trtkit.checkpoints.quantized import read_quantized
from trtkit.checkpoints.source import find_checkpoint
from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.config.load import load_config
from trtkit.config.schema import BuildConfig
from trtkit.export.assisted import export_transformers
from trtkit.export.counterpart import Counterpart
from trtkit.export.vllm import export_vllm


@click.command()
@click.argument("runtime", type=click.Choice(["vllm", "transformers"]))
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--to", "out", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file as well.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@with_output
def command(output: Output, runtime: str, config: Path, out: Path | None, overrides: tuple[str, ...]) -> None:
    """Write the YAML's counterpart for another runtime: the vllm serve command, or a script for transformers.

    What the runtime has no word for is said on stderr.
    """
    counterpart = _export(runtime, load_config(config, overrides))
    for note in counterpart.notes:
        output.note(f"note: {note}")
    if out is not None:
        write_text(out, counterpart.text)
    record = {
        "schema": "trtkit.export/1",
        "runtime": runtime,
        "text": counterpart.text,
        "notes": list(counterpart.notes),
    }
    output.result(record, counterpart.text.rstrip("\n"))


def _export(runtime: str, config: BuildConfig) -> Counterpart:
    cache = cache_directory()
    folders = {role: find_checkpoint(m.checkpoint, cache, m.revision) for role, m in config.models.items()}
    named = {role: str(folders[role] or model.checkpoint) for role, model in config.models.items()}
    if runtime == "transformers":
        return export_transformers(config, checkpoints=named)
    stored = {role for role, folder in folders.items() if folder is not None and read_quantized(folder) is not None}
    counterpart = export_vllm(config, checkpoints=named, stored_quantized=stored)
    unseen = [role for role, model in config.models.items() if folders[role] is None and model.quantization != "none"]
    notes = [
        f"{role}.checkpoint is not on this disk: if it is stored quantised, leave its quantization out"
        for role in unseen
    ]
    return replace(counterpart, notes=(*notes, *counterpart.notes))
