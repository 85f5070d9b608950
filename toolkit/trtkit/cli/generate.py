"""`trtkit generate`."""

from typing import Any

import click

from trtkit.cli.output import Output, with_output
from trtkit.cli.prompt import ask, finish
from trtkit.client.request import GenerateRequest


@click.command()
@click.argument("target", metavar="BUILD|URL")
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Length of the answer.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Sample among the K likeliest; 0 is all.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sample within this probability mass.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats a sampled answer.")
@click.option("--stop", "stop_words", multiple=True, help="Text that ends the answer; repeatable.")
@click.option("--draft-len", "num_draft_tokens", type=click.IntRange(min=0), help="Draft tokens per step; 0 is off.")
@click.option("--stream/--no-stream", default=True, show_default=True, help="Print text as it comes.")
@click.option("--timeout", "deadline_s", type=click.FloatRange(min=0, min_open=True), help="Seconds for the answer.")
@click.option("--chat", "is_chat", is_flag=True, help="PROMPT is a message, or a JSON list of messages.")
@with_output
def command(output: Output, target: str, prompt: str, **options: Any) -> None:
    """Continue PROMPT and stream the text.

    BUILD is asked through the server that serves it, or through one that is started for this call; URL is
    grpc://HOST:PORT, or http://HOST:PORT for generate_stream.
    """
    finish(output, ask(output, target, GenerateRequest(prompt, **options)))
