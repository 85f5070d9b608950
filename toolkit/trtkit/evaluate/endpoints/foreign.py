"""Deployments that trtkit did not render as endpoints: the llmapi model, and OpenAI-compatible servers.

Neither lets a client choose the draft length. The llmapi model sends text alone, as most OpenAI-compatible servers do.
"""

from collections.abc import Callable

from trtkit.client.completion_part import CompletionPart
from trtkit.client.llmapi_client import LlmApiClient
from trtkit.client.openai_client import OpenAiClient
from trtkit.client.request import CompletionRequest
from trtkit.errors import ServerError
from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation


class LlmApiEndpoint:
    """NVIDIA's llmapi model over gRPC; answers are text."""

    def __init__(self, address: str, clock_ns: Callable[[], int]) -> None:
        self._client = LlmApiClient(address)
        self._clock_ns = clock_ns

    def close(self) -> None:
        """Give the connection up; answers under way end with a ServerError."""
        self._client.close()

    def generate(self, request: EndpointRequest) -> Generation:
        """Read one answer to its end. Raises RequestError and ServerError as the client does."""
        asked = _completion(request)
        sent_ns = self._clock_ns()
        text, arrivals = "", []
        for response in self._client.generate(asked):
            text = response.text
            arrivals.append(Arrival(self._clock_ns(), 1))
            if request.cancel_after_tokens is not None and len(arrivals) >= request.cancel_after_tokens:
                break
        if not arrivals:
            raise ServerError("the llmapi model sent no response", "see the server's log", code="SERVER")
        return Generation((), sent_ns, tuple(arrivals), text=text)


class OpenAiEndpoint:
    """An OpenAI-compatible server; answers are token ids where it tells them, else text."""

    def __init__(self, client: OpenAiClient, clock_ns: Callable[[], int]) -> None:
        self._client = client
        self._clock_ns = clock_ns

    def close(self) -> None:
        """Give the connection up; answers under way end with a ServerError."""
        self._client.close()

    def generate(self, request: EndpointRequest) -> Generation:
        """Read one answer to its end. Raises RequestError and ServerError as the client does."""
        asked = _completion(request)
        sent_ns = self._clock_ns()
        parts: list[CompletionPart] = []
        arrivals = []
        for part in self._client.complete(asked):
            parts.append(part)
            arrivals.append(Arrival(self._clock_ns(), len(part.token_ids or "x" * bool(part.text))))
            if request.cancel_after_tokens is not None and len(parts) >= request.cancel_after_tokens:
                break
        has_ids = all(part.token_ids is not None for part in parts)
        return Generation(
            token_ids=tuple(token for part in parts for token in part.token_ids or ()) if has_ids else (),
            sent_ns=sent_ns,
            arrivals=tuple(arrivals),
            num_prompt_tokens=next((p.num_prompt_tokens for p in reversed(parts) if p.num_prompt_tokens), None),
            text=None if has_ids else "".join(part.text for part in parts),
        )


def _completion(request: EndpointRequest) -> CompletionRequest:
    """What is asked of either; a request that is to be cancelled has to be streamed."""
    stream = request.stream or request.cancel_after_tokens is not None
    return CompletionRequest(request.text, request.max_new_tokens, stream, request.temperature, request.seed)
