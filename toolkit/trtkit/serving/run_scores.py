"""Log probabilities and logits of one answer, collected from the target's calls. Pure; knows no tensors of Triton."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trtkit.serving.tensor import Array

Score = Literal["log_probs", "generation_logits", "context_logits"]


@dataclass(frozen=True)
class LlmReply:
    """New tokens of one response, and what its call asked for besides.

    n tokens, P prompt tokens, V vocab_size:
        log_probs          [n]
        generation_logits  [n, V]; one row more where an end token was chosen that is not shown
        context_logits     [P, V]
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    generation_logits: Array | None = None
    context_logits: Array | None = None


@dataclass
class RunScores:
    """What belongs to the answer's tokens, one entry for each."""

    log_probs: list[float] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    context_logits: Array | None = None
    has_replies: bool = False

    def note(self, reply: LlmReply) -> None:
        """Take up a reply of the target."""
        self.has_replies = True
        self.log_probs.extend(reply.log_probs)
        if reply.generation_logits is not None:
            self.logits.extend(reply.generation_logits[: len(reply.token_ids)])
        if reply.context_logits is not None:
            self.context_logits = reply.context_logits

    def trim(self, num_tokens: int) -> None:
        """Drop what belongs to tokens that the answer did not keep."""
        del self.log_probs[num_tokens:]
        del self.logits[num_tokens:]

    def outputs(self, first: int, returns: frozenset[Score]) -> dict[str, Array]:
        """The output tensors for the tokens from `first` on, in TensorRT-LLM's shapes; cum_log_probs is of them all."""
        outputs: dict[str, Array] = {}
        if "log_probs" in returns:
            outputs["output_log_probs"] = np.array([[self.log_probs[first:]]])
            outputs["cum_log_probs"] = np.array([[sum(self.log_probs)]])
        if "generation_logits" in returns and self.logits[first:]:
            outputs["generation_logits"] = np.stack(self.logits[first:])[None, None]
        if self.context_logits is not None and first == 0:
            outputs["context_logits"] = self.context_logits[None]
        return outputs
