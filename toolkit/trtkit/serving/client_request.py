"""The tensors of a `tensorrt_llm_bls` request to what one answer needs. Knows inputs and limits, calls no model."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.errors import RequestError
from trtkit.serving.batch import num_sequences
from trtkit.serving.build_defaults import BuildDefaults
from trtkit.serving.contract import CHAT_PARAMETER, CLIENT_NAMES, OLD_NAMES
from trtkit.serving.inputs import Inputs
from trtkit.serving.run_scores import Score
from trtkit.serving.tensor import ModelContract

NOT_SERVED = (
    "decoder_text_input",
    "prompt_embedding_table",
    "prompt_table_extra_id",
    "prompt_vocab_size",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
    "image_input",
    "image_bytes_input",
    "video_bytes_input",
    "image_url_input",
)
_MAX_SESSION_BYTES = 4 << 20
# Set by the loop itself for every call, or meant for the answer as a whole.
_SCORES: tuple[Score, ...] = ("log_probs", "generation_logits", "context_logits")
_NOT_PASSED_ON = {
    *("streaming", "end_id", "pad_id", "min_tokens", "min_length", "exclude_input_in_output"),
    *("num_return_sequences", "beam_width", "return_num_input_tokens", "return_num_output_tokens"),
    *(f"return_{score}" for score in _SCORES),
}
_SEQUENCE_STRIDE = 0xD1B54A32D192ED03  # odd and far from the stride of evictions: seeds of sequences do not meet


@dataclass(frozen=True)
class ClientRequest:
    """One answer as the client wants it. sampling has the engine's input names.

    fixes_draft_len says that max_draft_len is the client's own number and not to be changed. is_chat: text is for the
    chat template. bad_words and bias_words, with a weight each, become token ids once the tokenizer is there.
    """

    request_id: str
    text: str
    is_chat: bool
    timeout_s: float | None
    max_tokens: int
    min_tokens: int
    end_ids: tuple[int, ...]
    pad_id: int
    stop_words: tuple[str, ...]
    bad_words: tuple[str, ...]
    bias_words: tuple[str, ...]
    bias_weights: tuple[float, ...]
    sampling: Mapping[str, Any]
    max_draft_len: int
    fixes_draft_len: bool
    streaming: bool
    includes_prompt: bool
    by_logits: bool
    returns: frozenset[Score]
    num_sequences: int
    wants_measures: bool

    def sequences(self, seed_name: str) -> tuple["ClientRequest", ...]:
        """One request for each sequence wanted, with a seed of its own; the first keeps the client's."""
        seed = int(np.asarray(self.sampling.get(seed_name, 0)).reshape(-1)[0])
        others = (
            replace(
                self,
                request_id=f"{self.request_id}-{index}",
                sampling={**self.sampling, seed_name: (seed + index * _SEQUENCE_STRIDE) % 2**64},
            )
            for index in range(1, self.num_sequences)
        )
        return (self, *others)


def read_client_request(
    inputs: Inputs, row: int, llm: ModelContract, defaults: BuildDefaults, *, decoupled: bool
) -> ClientRequest:
    """Read and check one row of a request. Raises RequestError naming the input."""
    _refuse_unserved(inputs, row)
    max_tokens = _max_tokens(inputs, row)
    end_id, pad_id = inputs.value("end_id", row), inputs.value("pad_id", row)
    bias_words, bias_weights = inputs.weighted_texts("embedding_bias_words", "embedding_bias_weights", row)
    exclude = inputs.value("exclude_input_in_output", row)
    streaming = bool(inputs.value("stream", row))
    if streaming and not decoupled:
        raise RequestError(
            "input stream is true, but the models are not decoupled",
            "leave stream out (generate --no-stream), or build with serving.streaming: true",
            code="REQ-STREAMING",
        )
    return ClientRequest(
        request_id=f"{inputs.request_id or 'request'}-{secrets.token_hex(4)}",
        text=inputs.text("text_input", row) or "",
        is_chat=inputs.flag(CHAT_PARAMETER),
        timeout_s=inputs.timeout_s(),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(inputs, row, max_tokens),
        end_ids=defaults.end_ids if end_id is None else (end_id,),
        pad_id=defaults.pad_id if pad_id is None else pad_id,
        stop_words=tuple(inputs.texts("stop_words", row)),
        bad_words=tuple(inputs.texts("bad_words", row)),
        bias_words=tuple(bias_words),
        bias_weights=tuple(bias_weights),
        sampling=_sampling(inputs, row, llm),
        max_draft_len=_draft_len(inputs.value("num_draft_tokens", row), defaults),
        fixes_draft_len="num_draft_tokens" in inputs,
        streaming=streaming,
        includes_prompt=not streaming and not (defaults.excludes_prompt if exclude is None else exclude),
        by_logits=_switch(inputs, "use_draft_logits", row, default=defaults.by_logits),
        returns=frozenset(score for score in _SCORES if inputs.value(f"return_{score}", row)),
        num_sequences=num_sequences(inputs.value("num_return_sequences", row)),
        wants_measures=bool(inputs.value("return_perf_metrics", row)),
    )


def _max_tokens(inputs: Inputs, row: int) -> int:
    asked: int = inputs.value("max_tokens", row)
    if asked < 1:
        raise RequestError(f"input max_tokens must be at least 1, got {asked}", "ask for a token", code="REQ-TOKENS")
    return asked


def _min_tokens(inputs: Inputs, row: int, max_tokens: int) -> int:
    asked: int = inputs.value(_as_sent(inputs, "min_tokens"), row) or 0
    if not 0 <= asked <= max_tokens:
        raise RequestError(
            f"input min_tokens must be between 0 and max_tokens {max_tokens}, got {asked}",
            "ask for no more at least than at most",
            code="REQ-TOKENS",
        )
    return asked


def refuse_surely_too_long(text: str, longest_token_bytes: int, defaults: BuildDefaults) -> None:
    """Raise RequestError for a text that no tokenization fits into max_input_len: encoding megabytes takes minutes.

    With a rolling window a session may be any longer than it, but for that reason.
    """
    num_bytes = len(text.encode())
    if defaults.rolling is not None:
        if num_bytes > _MAX_SESSION_BYTES:
            raise RequestError(
                f"input text_input has {num_bytes} bytes, the limit of a session is {_MAX_SESSION_BYTES}",
                "send the last part alone: what is older than the window is not read anyway",
                code="REQ-LENGTH",
            )
        return
    least, limit = num_bytes // longest_token_bytes, defaults.max_input_len
    if least > limit:
        raise RequestError(
            f"input text_input has more than {least} tokens, the limit is max_input_len {limit}",
            "shorten it, or build with a larger limits.max_input_len",
            code="REQ-LENGTH",
        )


def refuse_too_long(num_prompt_tokens: int, max_tokens: int, defaults: BuildDefaults) -> None:
    """Raise RequestError with the limit that the request exceeds, before any model is asked.

    A rolling window has none: of a longer prompt the models are shown the sinks and the last part.
    """
    if num_prompt_tokens == 0:
        raise RequestError("input text_input holds no token", "send a prompt", code="REQ-EMPTY")
    if defaults.rolling is not None:
        return
    if num_prompt_tokens > defaults.max_input_len:
        raise RequestError(
            f"input text_input has {num_prompt_tokens} tokens, the limit is max_input_len {defaults.max_input_len}",
            "shorten it, or build with a larger limits.max_input_len",
            code="REQ-LENGTH",
        )
    if num_prompt_tokens + max_tokens > defaults.max_seq_len:
        raise RequestError(
            f"input max_tokens: {num_prompt_tokens} prompt tokens and {max_tokens} new ones exceed"
            f" {defaults.max_seq_len}, the sum of max_input_len and max_output_len",
            f"ask for at most {defaults.max_seq_len - num_prompt_tokens}, or build with larger limits",
            code="REQ-LENGTH",
        )


def _refuse_unserved(inputs: Inputs, row: int) -> None:
    for name in NOT_SERVED:
        # Clients send false for the switches among them as a matter of course.
        if name in inputs and inputs.any_set(name):
            raise RequestError(f"input {name} is not served by trtkit's models", "leave it out", code="REQ-UNSERVED")
    if inputs.value("beam_width", row) not in (None, 1):
        raise RequestError(
            "input beam_width must be 1 here: beams and drafts exclude each other",
            "ask the ensemble, which has no drafts",
            code="REQ-UNSERVED",
        )


def _switch(inputs: Inputs, name: str, row: int, *, default: bool) -> bool:
    value = inputs.value(name, row)
    return default if value is None else bool(value)


def _draft_len(asked: int | None, defaults: BuildDefaults) -> int:
    if asked is None:
        return defaults.max_draft_len
    if asked < 0:
        raise RequestError(f"input num_draft_tokens must not be negative, got {asked}", "send 0 for off", code="SPEC-K")
    if asked > defaults.max_draft_len:
        limit = f"at most {defaults.max_draft_len}" if defaults.max_draft_len else "0, because the build has no draft"
        raise RequestError(
            f"input num_draft_tokens must be {limit}, got {asked}",
            "send fewer, or build with a larger speculation.max_draft_len",
            code="SPEC-K",
        )
    return asked


def _sampling(inputs: Inputs, row: int, llm: ModelContract) -> dict[str, Any]:
    """The inputs that client and engine share, under the engine's names."""
    passed = {}
    for tensor in llm.inputs:
        client_name = _as_sent(inputs, CLIENT_NAMES.get(tensor.name, tensor.name))
        if tensor.name not in _NOT_PASSED_ON and inputs.declares(client_name) and client_name in inputs:
            passed[tensor.name] = inputs.array(client_name, row)
    return passed


def _as_sent(inputs: Inputs, name: str) -> str:
    """The name under which the request has an input that some releases call otherwise."""
    for new, old in OLD_NAMES.items():
        if name in (new, old):
            return old if old in inputs else new
    return name
