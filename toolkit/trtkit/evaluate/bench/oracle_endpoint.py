"""transformers' own generate as an endpoint, for the bench. Times tokens as they leave the model; judges nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtkit.evaluate.endpoints.endpoint import Arrival, EndpointRequest, Generation
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.prompts.encoding import PromptEncoder
from trtkit.prompts.files import Prompt


class _Stopwatch:
    """The streamer that generate reports to: first the prompt, then every token."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._seen_prompt = False
        self.arrivals: list[Arrival] = []

    def put(self, value: Any) -> None:
        if self._seen_prompt:
            self.arrivals.append(Arrival(self._clock_ns(), 1))
        self._seen_prompt = True

    def end(self) -> None:
        """Nothing is buffered."""


class OracleEndpoint:
    """Answers greedily with `generate` of transformers. One request at a time: torch uses all cores for one already."""

    def __init__(
        self, oracle: Oracle, encoder: PromptEncoder, end_ids: Sequence[int], clock_ns: Callable[[], int]
    ) -> None:
        self._model = oracle.model
        self._encoder = encoder
        self._end_ids = list(end_ids)
        self._clock_ns = clock_ns

    def generate(self, request: EndpointRequest) -> Generation:
        """Generate in this process."""
        prompt_ids = self._encoder.encode(Prompt("", "", text=request.text)).prompt_ids
        inputs = torch.tensor([list(prompt_ids)], device=self._model.device)
        stopwatch = _Stopwatch(self._clock_ns)
        sent_ns = self._clock_ns()
        out = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            eos_token_id=self._end_ids or None,
            pad_token_id=self._end_ids[0] if self._end_ids else 0,
            streamer=stopwatch,
        )
        token_ids = tuple(out[0, len(prompt_ids) :].tolist())
        return Generation(token_ids, sent_ns, tuple(stopwatch.arrivals), num_prompt_tokens=len(prompt_ids))
