"""`trtkit chat`."""

import sys
from typing import Any

import click

from trtkit.cli.answer_options import answer_options
from trtkit.cli.output import Output, with_output
from trtkit.cli.terminal_chat import converse, questions
from trtkit.client.connect import connect
from trtkit.client.request import GenerateRequest
from trtkit.client.session import ChatSession
from trtkit.server.connection import open_address
from trtkit.server.launch import ServerOptions


@click.command()
@click.argument("target", metavar="BUILD|URL")
@click.option("--system", help="What the model is told before the first message.")
@answer_options(256)
@with_output
def command(output: Output, target: str, system: str | None, **options: Any) -> None:
    """Talk to a build or a server: each line is a message, and the answer streams below it.

    /stats shows figures, /new forgets the history, /exit or Ctrl-D ends. Ctrl-C stops an answer, not the session.
    Lines may be piped in. The server applies the tokenizer's chat template. URL is grpc://HOST:PORT or
    http://HOST:PORT.
    """
    with open_address(target, ServerOptions(), output.progress) as at, connect(at.scheme, at.address) as client:
        client.check_ready()
        output.close_bars()
        session = ChatSession(client, GenerateRequest("", **options), system)
        converse(output, session, questions(sys.stdin, output), is_interactive=sys.stdin.isatty())
