"""What a client asks and what comes back. Knows no transport."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["length", "end_id", "stop_words", "cancelled"]


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt to continue.

    Greedy when temperature is 0; top_k 0 and top_p None then cut nothing. num_draft_tokens 0 switches
    speculation off, None leaves it to the build. is_chat: text is a user's message, or a JSON list of messages, and the
    server puts it into the tokenizer's chat template. deadline_s bounds the whole answer. stream None: in pieces where
    the server's models send pieces, and whole where they do not.
    """

    text: str
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    stop_words: tuple[str, ...] = ()
    num_draft_tokens: int | None = None
    stream: bool | None = None
    wants_cache_figures: bool = False
    deadline_s: float | None = None
    is_chat: bool = False


@dataclass(frozen=True)
class CompletionRequest:
    """One prompt to continue by a server that knows nothing of trtkit; greedy when temperature is 0."""

    text: str
    max_tokens: int
    stream: bool = False
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Figures:
    """What the server says of a whole answer. Rates and times are 0 where nothing was drafted.

    num_reused_blocks is None unless the request asked for it.
    """

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_target_passes: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float
    draft_time_ms: float
    target_time_ms: float
    num_evicted_tokens: int = 0
    num_reused_blocks: int | None = None


@dataclass(frozen=True)
class Chunk:
    """One response. text is what may be shown by now, token_ids are the tokens of the response alone.

    received_ns is on the client's clock. figures come with the last chunk.
    """

    text: str
    token_ids: tuple[int, ...]
    received_ns: int
    figures: Figures | None = None

    @property
    def is_final(self) -> bool:
        """No chunk follows."""
        return self.figures is not None
