"""A served repository as an endpoint: the BLS model through the gRPC client. Knows the client's chunks, no server."""

from collections.abc import Callable
from dataclasses import replace

from trtkit.client.request import Chunk, Figures, GenerateRequest
from trtkit.client.triton_client import TritonClient
from trtkit.errors import ServerError
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation


class TritonEndpoint:
    """Requests over one connection; any number of threads may ask at the same time."""

    def __init__(self, address: str, clock_ns: Callable[[], int]) -> None:
        self._client = TritonClient(address, clock_ns=clock_ns)

    def check_ready(self) -> None:
        """Raises ServerError when the server or its model is not there."""
        self._client.check_ready()

    def close(self) -> None:
        """Give the connection up; answers under way end with a ServerError."""
        self._client.close()

    def generate(self, request: EndpointRequest) -> Generation:
        """Read one answer to its end. Raises RequestError and ServerError as the client does."""
        answer = self._client.generate(message_request(request))
        chunks = []
        for chunk in answer:
            chunks.append(chunk)
            if request.cancel_after_tokens is not None and _count(chunks) >= request.cancel_after_tokens:
                answer.cancel()
        return generation_of(request, answer.sent_ns, chunks)


def message_request(request: EndpointRequest) -> GenerateRequest:
    """The client's request for one of ours; streamed means in pieces where the server's models send pieces."""
    return GenerateRequest(
        request.text,
        request.max_new_tokens,
        num_draft_tokens=request.draft_len,
        stream=None if request.stream else False,
        temperature=request.temperature,
        seed=request.seed,
        stop_words=request.stop_words,
        wants_cache_figures=True,
    )


def generation_of(request: EndpointRequest, sent_ns: int, chunks: list[Chunk]) -> Generation:
    """An answer from its chunks, with the server's figures where it was read to its end.

    Raises ServerError when an answer that was not given up lacks them.
    """
    generation = Generation(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        sent_ns=sent_ns,
        arrivals=tuple(Arrival(chunk.received_ns, len(chunk.token_ids)) for chunk in chunks),
        is_streamed=request.stream,
    )
    if request.cancel_after_tokens is not None:
        return generation
    figures = _figures(chunks)
    return replace(
        generation,
        num_draft_tokens=figures.num_draft_tokens,
        num_accepted_tokens=figures.num_accepted_tokens,
        num_passes=figures.num_target_passes,
        num_prompt_tokens=figures.num_prompt_tokens,
        num_reused_blocks=figures.num_reused_blocks,
        is_streamed=request.stream and (len(chunks) > 1 or figures.num_target_passes < 2),
    )


def _count(chunks: list[Chunk]) -> int:
    return sum(len(chunk.token_ids) for chunk in chunks)


def _figures(chunks: list[Chunk]) -> Figures:
    if not chunks or chunks[-1].figures is None:
        raise ServerError("an answer ended before its last part", "see the server's log, then try again", code="SERVER")
    return chunks[-1].figures
