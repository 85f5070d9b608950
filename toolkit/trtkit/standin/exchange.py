"""One answer on its way out: from engine steps to `tensorrt_llm` responses. Knows tensors, not threads or engines."""

import time
from collections.abc import Callable

import numpy as np

from trtkit.acceptance import Acceptance
from trtkit.reference.request import NO_BLOCKS, Beam, StepOutput
from trtkit.serving.answer_times import AnswerTimes
from trtkit.serving.batch import Reply
from trtkit.serving.tensor import Array
from trtkit.standin.answer_scores import AnswerScores, beam_scores
from trtkit.standin.requests import LlmRequest


class Exchange:
    """Turns the StepOutputs of one request into responses.

    As in TensorRT-LLM, the end id is not part of the output, a stop word is, and a request with draft tokens is over
    once they are verified: accepted tokens and one of the model's own. Beams come at once, best first.
    """

    def __init__(self, request: LlmRequest, reply: Reply, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.request = request
        self.reply = reply
        self._clock_ns = clock_ns
        self._times = AnswerTimes(clock_ns())
        self._token_ids: list[int] = []
        self._beams: tuple[Beam, ...] = ()
        self._scores = AnswerScores(request.generation.returns)
        self._num_sent = 0
        self._acceptance: Acceptance | None = None
        self._num_reused_tokens = 0
        self._blocks = NO_BLOCKS

    @property
    def num_reused_tokens(self) -> int:
        """Prompt tokens that the engine found in its cache."""
        return self._num_reused_tokens

    def take(self, output: StepOutput, began_ns: int = 0) -> bool:
        """Send what this step, which began then, allows; True when the answer is complete, also where the engine would
        go on.
        """
        if output.error is not None:
            self.reply.fail(output.error)
            return True
        self._note(output, began_ns)
        generation = self.request.generation
        kept = [token != generation.end_id for token in output.token_ids]
        self._token_ids.extend(token for token, is_kept in zip(output.token_ids, kept, strict=True) if is_kept)
        self._beams = output.beams
        self._scores.note(output, kept)
        verified = bool(generation.draft_ids) and output.acceptance is not None
        finished = output.finished or verified
        if finished or (self.request.streaming and self._num_sent < len(self._token_ids)):
            self.reply.send(self._outputs(final=finished), final=finished)
            self._num_sent = len(self._token_ids)
        return finished

    def _note(self, output: StepOutput, began_ns: int) -> None:
        now_ns = self._clock_ns()
        self._times.note_scheduled(began_ns or now_ns)
        if output.token_ids:
            self._times.note_tokens(now_ns)
        self._num_reused_tokens = output.num_reused_tokens
        self._blocks = output.blocks
        self._acceptance = output.acceptance or self._acceptance

    def _outputs(self, *, final: bool) -> dict[str, Array]:
        outputs = self._beam_outputs() if self._beams else self._token_outputs()
        if not final:
            return outputs
        return outputs | (self._measures() if self.request.wants_measures else {}) | self._counts(outputs)

    def _counts(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Tokens of the prompt and of the whole answer, or of the best beam."""
        length = int(outputs["sequence_length"][0, 0]) - len(self._prompt_ids())
        counts = {
            "num_input_tokens": len(self.request.generation.prompt_ids),
            "num_output_tokens": length if self._beams else len(self._token_ids),
        }
        return {name: np.array([[count]]) for name, count in counts.items() if name in self.request.counts}

    def _token_outputs(self) -> dict[str, Array]:
        token_ids = self._token_ids[self._num_sent :] if self.request.streaming else list(self._token_ids)
        rows = {"output_ids": np.array([[[*self._prompt_ids(), *token_ids]]], np.int32)}
        length = {"sequence_length": np.array([[rows["output_ids"].shape[2]]])}
        return rows | length | self._scores.take(streaming=self.request.streaming)

    def _beam_outputs(self) -> dict[str, Array]:
        """Beams of different lengths are padded with the end id, as TensorRT-LLM does; sequence_length tells."""
        generation, prompt_ids = self.request.generation, self._prompt_ids()
        beams = self._beams[: self.request.num_beams]
        answers = [beam.token_ids[: -1 if beam.token_ids[-1] == generation.end_id else None] for beam in beams]
        width = max(len(answer) for answer in answers)
        padding = generation.end_id or 0
        rows = [[*prompt_ids, *answer, *[padding] * (width - len(answer))] for answer in answers]
        lengths = [len(prompt_ids) + len(answer) for answer in answers]
        scores = beam_scores(beams, [len(answer) for answer in answers], generation.returns)
        ids = {"output_ids": np.array([rows], np.int32), "sequence_length": np.array([lengths])}
        return ids | scores | self._scores.context()

    def _prompt_ids(self) -> tuple[int, ...]:
        """What stands in front of the answer."""
        shows = self.request.includes_prompt and not self.request.streaming
        return self.request.generation.prompt_ids if shows else ()

    def _measures(self) -> dict[str, Array]:
        """What NVIDIA's backend returns for return_perf_metrics."""
        accepted = self._acceptance.num_accepted_tokens if self._acceptance else 0
        drafted = self._acceptance.num_draft_tokens if self._acceptance else 0
        values = {
            "kv_cache_alloc_total_blocks": self._blocks.num_new + self._blocks.num_reused,
            "kv_cache_reused_blocks": self._blocks.num_reused,
            "kv_cache_alloc_new_blocks": self._blocks.num_new,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            "total_accepted_draft_tokens": accepted,
            "total_draft_tokens": drafted,
        }
        return {name: np.array([[value]]) for name, value in values.items()} | self._times.outputs()
