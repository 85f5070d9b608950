"""`trtkit generate`."""

from typing import Any

import click

from trtkit.cli.answer_options import answer_options
from trtkit.cli.output import Output, with_output
from trtkit.cli.prompt import ask, finish
from trtkit.client.request import GenerateRequest


@click.command()
@click.argument("target", metavar="BUILD|URL")
@click.argument("prompt")
@answer_options(64)
@click.option("--stop", "stop_words", multiple=True, help="Text that ends the answer; repeatable.")
@click.option("--stream/--no-stream", default=None, help="Print text as it comes. Default: if the build streams.")
@click.option("--chat", "is_chat", is_flag=True, help="PROMPT is a message, or a JSON list of messages.")
@with_output
def command(output: Output, target: str, prompt: str, **options: Any) -> None:
    """Continue PROMPT and stream the text.

    BUILD is asked through the server that serves it, or through one that is started for this call; URL is
    grpc://HOST:PORT, or http://HOST:PORT for generate_stream.
    """
    finish(output, ask(output, target, GenerateRequest(prompt, **options)))
