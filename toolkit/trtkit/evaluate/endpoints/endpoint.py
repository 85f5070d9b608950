"""What parity and bench ask of a deployment, whatever serves it. Knows no protocol and no clock of its own."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EndpointRequest:
    """One request, greedy unless temperature is above 0: then it samples from the whole vocabulary with this seed.

    draft_len 0 switches speculation off, None leaves it to the deployment. stream False asks for one response.
    The text ends before the first of stop_words. cancel_after_tokens gives the request up once so many tokens have
    come; the answer then holds those that came until it ended.
    """

    text: str
    max_new_tokens: int
    draft_len: int | None = None
    stream: bool = True
    cancel_after_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    stop_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arrival:
    """One response of the stream: when it came, and how many tokens it brought."""

    at_ns: int
    num_tokens: int


@dataclass(frozen=True)
class Generation:
    """A whole answer; each count is None where the deployment does not report it.

    num_passes counts the target's passes, num_prompt_tokens what the deployment made of the text, num_reused_blocks
    the blocks of the KV cache that it found filled. text is the answer of a deployment that tells no token ids.
    is_streamed says that each arrival is one step of the deployment.
    """

    token_ids: tuple[int, ...]
    sent_ns: int
    arrivals: tuple[Arrival, ...]
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_passes: int | None = None
    num_prompt_tokens: int | None = None
    num_reused_blocks: int | None = None
    text: str | None = None
    is_streamed: bool = True


@dataclass(frozen=True)
class Answered:
    """A request of a load, the class of prompt it belongs to, and its answer."""

    request: EndpointRequest
    group: str
    generation: Generation


class AsyncEndpoint(Protocol):
    """A served deployment for many requests at once, on one event loop."""

    async def generate(self, request: EndpointRequest) -> Generation:
        """Send one request and wait for its end. Raises ServerError when the deployment answers with an error."""
        ...


class Endpoint(Protocol):
    """A served deployment. Implementations may be called from several threads at once."""

    def generate(self, request: EndpointRequest) -> Generation:
        """Send one request and wait for its end. Raises ServerError when the deployment answers with an error."""
        ...
