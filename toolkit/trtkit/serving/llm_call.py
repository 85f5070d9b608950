"""One request to a `tensorrt_llm` model, and the model as what answers it. Pure; knows no tensors of Triton."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtkit.serving.run_scores import LlmReply, Score
from trtkit.serving.tensor import Array


@dataclass(frozen=True)
class LlmCall:
    """One request to a `tensorrt_llm` model.

    sampling has the model's own input names; it goes to draft and target alike, so that the draft guesses under the
    same rules. draft_ids empty means that none are sent: the runtime rejects an empty draft. draft_logits, [drafts, V],
    are what they were drawn from. returns: what is asked for besides tokens.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    draft_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    streaming: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    num_evicted_tokens: int = 0
    draft_logits: Array | None = None
    returns: frozenset[Score] = frozenset()


class Llm(Protocol):
    """A model that continues a prompt."""

    def generate(self, call: LlmCall) -> Iterator[LlmReply]:
        """Send the call at once; its responses are read from the iterator, to the end, also after `stop`."""
        ...

    def stop(self, request_id: str) -> None:
        """Ask for an early end of the call with this id."""
        ...
