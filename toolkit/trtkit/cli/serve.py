"""`trtkit serve`."""

from pathlib import Path

import click

from trtkit.builds import open_build
from trtkit.cli.output import Output, with_output
from trtkit.server.connection import endpoints_of
from trtkit.server.launch import ServerOptions
from trtkit.server.run import serve_until_interrupted
from trtkit.server.triton_server import TritonServer

_PORT = click.IntRange(0, 65535)


@click.command()
@click.argument("build", type=click.Path(path_type=Path))
@click.option("--http-port", type=_PORT, help="KServe over HTTP; 0 chooses a free port. Default: the build's.")
@click.option("--grpc-port", type=_PORT, help="KServe over gRPC; 0 chooses a free port. Default: the build's.")
@click.option("--metrics-port", type=_PORT, help="Prometheus; 0 chooses a free port. Default: the build's.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--drain", default=5.0, show_default=True, help="Seconds that requests under way get after Ctrl-C.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each model's arithmetic.")
@with_output
def command(output: Output, build: Path, host: str, drain: float, threads: int | None, **ports: int | None) -> None:
    """Start Triton on BUILD, print where it answers, and stop it cleanly on Ctrl-C or SIGTERM.

    A model's process that dies is replaced by starting the server again on the same ports.
    """
    asked = {name.removesuffix("_port"): port for name, port in ports.items()}
    server = TritonServer(
        build,
        endpoints_of(open_build(build), asked, host),
        ServerOptions(drain_s=drain, num_threads=threads),
        on_progress=output.progress,
        on_event=output.note,
    )
    with server:
        serve_until_interrupted(server, output.result)
    output.note("stopped")
