"""Log probabilities and logits of one answer on their way out, in TensorRT-LLM's shapes. Knows tensors, no requests."""

from collections.abc import Sequence

import numpy as np

from trtkit.reference.request import Beam, FloatArray, Returns, StepOutput
from trtkit.serving.tensor import Array


class AnswerScores:
    """Collects what steps bring and hands it out with the tokens it belongs to.

    One row of a request, B beams, n tokens of a response, P prompt tokens, V vocab_size:
        output_log_probs   [1, B, n]
        cum_log_probs      [1, B]        of the answer so far
        generation_logits  [1, B, n, V]  the end token's row is there although the token is not
        context_logits     [1, P, V]     with the first response that has tokens
    """

    def __init__(self, returns: Returns) -> None:
        self._returns = returns
        self._log_probs: list[float] = []
        self._logits: list[FloatArray] = []
        self._context: list[FloatArray] = []
        self._num_sent = 0
        self._num_logits_sent = 0

    def note(self, output: StepOutput, kept: Sequence[bool]) -> None:
        """Take up one step; `kept` says which of its tokens are part of the answer."""
        self._log_probs += [value for value, is_kept in zip(output.log_probs, kept, strict=False) if is_kept]
        if output.generation_logits is not None:
            self._logits += list(output.generation_logits)
        if output.context_logits is not None:
            self._context.append(output.context_logits)

    def take(self, *, streaming: bool) -> dict[str, Array]:
        """The outputs that go with the next response: all so far, or, streaming, those not sent yet."""
        outputs: dict[str, Array] = {}
        first, first_logits = (self._num_sent, self._num_logits_sent) if streaming else (0, 0)
        if self._returns.log_probs:
            outputs["output_log_probs"] = np.array([[self._log_probs[first:]]])
            outputs["cum_log_probs"] = np.array([[sum(self._log_probs)]])
        if self._returns.generation_logits and self._logits[first_logits:]:
            outputs["generation_logits"] = np.stack(self._logits[first_logits:])[None, None]
        outputs |= self.context()
        self._num_sent, self._num_logits_sent = len(self._log_probs), len(self._logits)
        if streaming:
            self._context = []
        return outputs

    def context(self) -> dict[str, Array]:
        """The prompt's logits, where they were asked for and are not sent yet."""
        return {"context_logits": np.concatenate(self._context)[None]} if self._context else {}


def beam_scores(beams: Sequence[Beam], kept: Sequence[int], returns: Returns) -> dict[str, Array]:
    """What belongs to beams, best first; `kept` tokens of each are part of the answer. Short rows end in zeros."""
    outputs: dict[str, Array] = {}
    if returns.log_probs:
        outputs["output_log_probs"] = _padded([np.array(b.log_probs[:n]) for b, n in zip(beams, kept, strict=True)])
        outputs["cum_log_probs"] = np.array([[sum(b.log_probs[:n]) for b, n in zip(beams, kept, strict=True)]])
    if returns.generation_logits:
        outputs["generation_logits"] = _padded([np.stack(beam.logits) for beam in beams])
    return outputs


def _padded(rows: Sequence[Array]) -> Array:
    """Arrays that differ in their first axis -> [1, B, longest, ...]."""
    whole = np.zeros((1, len(rows), max(len(row) for row in rows), *rows[0].shape[1:]), np.float32)
    for beam, row in enumerate(rows):
        whole[0, beam, : len(row)] = row
    return whole
