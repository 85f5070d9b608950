"""A `tensorrt_llm` model of the same server as an `Llm`. Knows the tensors of a call, not the draft-target loop.

Calls go through the server's own gRPC port and not through pb_utils. In the Python backend (read at 2.51 and later), a
thread that begins a call and a thread that waits for another call's next response can block each other for ever, and
a finished call's arrays are freed without Python's lock, which crashes the process.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtkit.serving.conversation import Conversation
from trtkit.serving.kserve import array_of, request_message
from trtkit.serving.llm_call import LlmCall
from trtkit.serving.run_scores import LlmReply
from trtkit.serving.tensor import Array, ModelContract, Outputs

_SEED_STRIDE = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring counts give seeds far apart
_CACHE_FIGURES = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")


class InnerLlm:
    """Calls the model `name`; works against NVIDIA's backend and the stand-in through the same tensors.

    cache_figures are those of the first call, which is the one that meets the client's prompt; they are there when
    the sampling inputs ask for return_perf_metrics.
    """

    def __init__(
        self, conversation: Conversation, contract: ModelContract, *, decoupled: bool, end_id: int, pad_id: int
    ) -> None:
        self._conversation = conversation
        self._contract = contract
        self._min_tokens = "min_tokens" if contract.declares("min_tokens") else "min_length"
        self._seed_name = "seed" if contract.declares("seed") else "random_seed"
        self._decoupled = decoupled
        self._ends = {"end_id": end_id, "pad_id": pad_id}
        self.cache_figures: dict[str, Array] = {}

    def generate(self, call: LlmCall) -> Iterator[LlmReply]:
        """Send the call; read its responses from the iterator, which raises the model's own error."""
        values: dict[str, Any] = {
            "input_ids": np.array(call.prompt_ids, dtype=np.int32),
            "input_lengths": len(call.prompt_ids),
            "request_output_len": call.max_new_tokens,
            "streaming": call.streaming and self._decoupled,
            "exclude_input_in_output": True,
            "draft_input_ids": np.array(call.draft_ids, dtype=np.int32) if call.draft_ids else None,
            "draft_logits": call.draft_logits,
            **{f"return_{score}": True for score in call.returns},
            self._min_tokens: call.min_new_tokens or None,
            **self._ends,
            **call.sampling,
            **self._seed(call),
        }
        responses = self._conversation.ask(request_message(self._contract, values, request_id=call.request_id))
        return self._replies(responses)

    def stop(self, request_id: str) -> None:
        """Cancel the call under way; its iterator ends, and the answer's conversation with it."""
        self._conversation.cancel()

    def _replies(self, responses: Iterator[Outputs]) -> Iterator[LlmReply]:
        for outputs in responses:
            self._note_cache(outputs)
            yield _reply(outputs)

    def _seed(self, call: LlmCall) -> dict[str, int]:
        """After an eviction positions repeat, and with them the random numbers of a seed: give each stretch its own."""
        if not call.num_evicted_tokens:
            return {}
        seed = int(np.asarray(call.sampling.get(self._seed_name, 0)).reshape(-1)[0])
        return {self._seed_name: (seed + call.num_evicted_tokens * _SEED_STRIDE) % 2**64}

    def _note_cache(self, outputs: Outputs) -> None:
        if not self.cache_figures:
            self.cache_figures = {name: outputs[name] for name in _CACHE_FIGURES if name in outputs}


def _reply(outputs: Outputs) -> LlmReply:
    """The first beam of a response."""
    length = int(array_of(outputs, "sequence_length").reshape(-1)[0])
    log_probs, logits = outputs.get("output_log_probs"), outputs.get("generation_logits")
    context = outputs.get("context_logits")
    return LlmReply(
        token_ids=tuple(array_of(outputs, "output_ids").reshape(-1)[:length].tolist()),
        log_probs=() if log_probs is None else tuple(log_probs.reshape(-1)[:length].tolist()),
        generation_logits=None if logits is None else logits.reshape(-1, logits.shape[-1]),
        context_logits=None if context is None else context[0],
    )
