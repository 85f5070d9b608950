"""`trtkit serve`."""

from pathlib import Path
from typing import Any

import click

from trtkit.cli.environment import program_environment
from trtkit.cli.finite_range import FiniteRange
from trtkit.cli.output import Output, with_output
from trtkit.server.choice import ServeChoices, choose_server
from trtkit.server.run import serve_until_interrupted

_PORT = click.IntRange(0, 65535)


@click.command()
@click.argument("build", type=click.Path(path_type=Path))
@click.option("--http-port", type=_PORT, help="KServe over HTTP; 0 chooses a free port. Default: the build's.")
@click.option("--grpc-port", type=_PORT, help="KServe over gRPC; 0 chooses a free port. Default: the build's.")
@click.option("--metrics-port", type=_PORT, help="Prometheus; 0 chooses a free port. Default: the build's.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--drain",
    "drain_s",
    type=FiniteRange(min=0),
    default=5.0,
    show_default=True,
    help="Seconds for requests under way at the end.",
)
@click.option("--threads", "num_threads", type=click.IntRange(min=1), help="Threads of each model's arithmetic.")
@click.option(
    "--container",
    type=click.Choice(["auto", "docker", "podman"]),
    is_flag=False,
    flag_value="auto",
    help="Serve in NVIDIA's image for the build's release, with docker or podman.",
)
@click.option("--attach", is_flag=True, help="Check and follow a server that runs already; it is not stopped.")
@click.option("--follow", "follow_s", type=FiniteRange(min=0.1), help="Every so many seconds, show what happened.")
@with_output
def command(output: Output, build: Path, follow_s: float | None, **choices: Any) -> None:
    """Start Triton on BUILD, print where it answers, and stop it cleanly on Ctrl-C or SIGTERM.

    A model's process that dies is replaced by starting the server again on the same ports. With --attach, --host and
    the ports say where the running server is.
    """
    chosen = ServeChoices(environment=program_environment(), **choices)
    with choose_server(build, chosen, output.progress, output.note) as server:
        serve_until_interrupted(server, output.result, follow_s, output.note)
    output.note("left" if chosen.attach else "stopped")
