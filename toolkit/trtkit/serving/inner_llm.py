"""A `tensorrt_llm` model of the same server as an `Llm`. Knows the tensors of a call, not the draft-target loop."""

from collections.abc import Iterator

import numpy as np

from trtkit.serving.contract import llm_contract
from trtkit.serving.draft_target import LlmCall
from trtkit.serving.tensor import Array, Outputs, one_row
from trtkit.serving.triton_io import ask_model

_TOKENS = ("output_ids", "sequence_length")
_CACHE_FIGURES = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")


class InnerLlm:
    """Calls the model `name`; works against NVIDIA's backend and the stand-in through the same tensors.

    cache_figures are those of the first call, which is the one that meets the client's prompt; they are there when
    the sampling inputs ask for return_perf_metrics.
    """

    def __init__(self, name: str, tensorrt_llm: str, *, decoupled: bool, end_id: int, pad_id: int) -> None:
        self._contract = llm_contract(name, tensorrt_llm)
        self._min_tokens = "min_tokens" if any(t.name == "min_tokens" for t in self._contract.inputs) else "min_length"
        self._decoupled = decoupled
        self._ends = {"end_id": end_id, "pad_id": pad_id}
        self.cache_figures: dict[str, Array] = {}

    def generate(self, call: LlmCall) -> Iterator[tuple[int, ...]]:
        """New tokens, response by response. Raises the model's own error."""
        values = {
            "input_ids": np.array(call.prompt_ids, dtype=np.int32),
            "input_lengths": len(call.prompt_ids),
            "request_output_len": call.max_new_tokens,
            "streaming": call.streaming and self._decoupled,
            "exclude_input_in_output": True,
            **self._ends,
            **call.sampling,
        }
        if call.draft_ids:
            values["draft_input_ids"] = np.array(call.draft_ids, dtype=np.int32)
        if call.min_new_tokens:
            values[self._min_tokens] = call.min_new_tokens
        figures = _CACHE_FIGURES if "return_perf_metrics" in call.sampling and not self.cache_figures else ()
        for response in self._ask(values, (*_TOKENS, *figures), call.request_id):
            self.cache_figures |= {name: response[name] for name in figures if name in response}
            length = int(response["sequence_length"].reshape(-1)[0])
            yield tuple(response["output_ids"].reshape(-1)[:length].tolist())

    def stop(self, request_id: str) -> None:
        """NVIDIA's contract for cancelling: a request with the same id and `stop`."""
        values = {"input_ids": np.zeros(1, np.int32), "input_lengths": 1, "request_output_len": 1, "stop": True}
        for _ in self._ask(values, _TOKENS, request_id):
            pass

    def _ask(self, values: "dict[str, object]", wanted: tuple[str, ...], request_id: str) -> "Iterator[Outputs]":
        inputs = {name: one_row(self._contract.input(name), value) for name, value in values.items()}
        return ask_model(self._contract, inputs, wanted, request_id, decoupled=self._decoupled)
