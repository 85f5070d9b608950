"""`trtkit chat`."""

import sys
from typing import Any

import click

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
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Sample among the K likeliest; 0 is all.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sample within this probability mass.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats sampled answers.")
@click.option("--repetition-penalty", type=click.FloatRange(min=0, min_open=True), help="Above 1: fewer repetitions.")
@click.option("--draft-len", "num_draft_tokens", type=click.IntRange(min=0), help="Draft tokens per step; 0 is off.")
@click.option("--timeout", "deadline_s", type=click.FloatRange(min=0, min_open=True), help="Seconds for one answer.")
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
