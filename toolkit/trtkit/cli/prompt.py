"""What generate shows: text as it comes, then figures. Knows the voice of a command, no transport."""

from trtkit.cli.output import Output
from trtkit.client.completion import Completion, collect
from trtkit.client.connect import connect
from trtkit.client.request import GenerateRequest
from trtkit.server.connection import open_address
from trtkit.server.launch import ServerOptions


def ask(output: Output, target: str, request: GenerateRequest) -> Completion:
    """Send the request; text goes to stdout as it comes, unless JSON is wanted."""
    with open_address(target, ServerOptions(), output.progress) as at, connect(at.scheme, at.address) as client:
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
