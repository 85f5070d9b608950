"""What generate shows: text as it comes, then figures. Knows the voice of a command, no transport."""

import datetime
from pathlib import Path

from trtkit.cli.output import Output
from trtkit.client.chat import render_chat
from trtkit.client.completion import Completion, collect
from trtkit.client.request import GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import InputError
from trtkit.server.connection import open_address, parse_address
from trtkit.server.launch import ServerOptions


def prompt_text(target: str, prompt: str, *, chat: bool) -> str:
    """PROMPT as it stands, or as a user's message in the template of BUILD's tokenizer."""
    if not chat:
        return prompt
    if parse_address(target) is not None:
        raise InputError("--chat needs the tokenizer of a build", "give BUILD instead of its address", code="CHAT-URL")
    message = {"role": "user", "content": prompt}
    return render_chat(Path(target) / "tokenizer", [message], datetime.datetime.now(datetime.UTC))


def ask(output: Output, target: str, request: GenerateRequest) -> Completion:
    """Send the request; text goes to stdout as it comes, unless JSON is wanted."""
    with open_address(target, ServerOptions(), output.progress) as address, TritonClient(address) as client:
        client.check_ready()
        output.close_bars()
        return collect(client.generate(request), (lambda _: None) if output.as_json else output.stream)


def finish(output: Output, completion: Completion) -> None:
    """The JSON document, or the end of the line and one line of figures on stderr."""
    output.result(completion.as_dict(), "")
    figures = completion.figures
    speed = "" if completion.tpot_ms is None else f", {completion.tpot_ms:.1f} ms per token"
    drafted = f", {figures.num_accepted_tokens} of {figures.num_draft_tokens} draft tokens accepted"
    output.note(
        f"{figures.num_output_tokens} tokens ({figures.finish_reason}), first after {completion.ttft_ms:.0f} ms{speed}"
        f"{drafted if figures.num_draft_tokens else ''}"
    )
