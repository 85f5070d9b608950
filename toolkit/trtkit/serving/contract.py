"""The tensors of the six Triton models, declared once. Knows names, types and shapes; runs nothing.

They are NVIDIA's (tensorrtllm_backend at c2e65b8, and triton_backend of TensorRT-LLM for what 0.20 added), so clients
written for NVIDIA's repository work. `repository` writes them to config.pbtxt, `serving` and `standin` read them from
requests, `client` sends them.
"""

from trtkit.serving.tensor import ModelContract, optional, ragged, rename, required, scalars

PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"
TARGET = "tensorrt_llm"
DRAFT = "tensorrt_llm_draft"
BLS = "tensorrt_llm_bls"

# A request parameter, because NVIDIA's models have no tensor for it: text_input is messages for the chat template.
CHAT_PARAMETER = "apply_chat_template"

# Inputs of preprocessing that trtkit's model declares and refuses.
NOT_PREPROCESSED = ("DECODER_QUERY", "IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES", "PROMPT_TABLE_EXTRA_ID")

# Up to 0.19 these inputs were called otherwise, by the engine and by clients; the counts of tokens came with 0.20.
OLD_NAMES = {"seed": "random_seed", "min_tokens": "min_length"}
_SINCE_0_20 = {"return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens"}

_MEASURES = (
    *required("INT32", "kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks", 1),
    *required("INT64", "arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns", 1),
    *required("FP32", "acceptance_rate", 1),
    *required("INT32", "total_accepted_draft_tokens total_draft_tokens", 1),
)
_COUNTS = required("INT32", "num_input_tokens num_output_tokens", 1)
_SCORES = (
    *required("FP32", "cum_log_probs", -1),
    *required("FP32", "output_log_probs", -1, -1),
    *required("FP32", "context_logits", -1, -1),
    *required("FP32", "generation_logits", -1, -1, -1),
    *required("INT32", "batch_index sequence_index", 1),
)

_LLM_INPUTS = (
    *ragged("INT32", "input_ids", -1),
    *ragged("FP16", "encoder_input_features", -1, -1),
    *scalars("INT32", "encoder_output_lengths"),
    *scalars("INT32", "input_lengths request_output_len", needed=True),
    *scalars("INT32", "num_return_sequences"),
    *ragged("INT32", "draft_input_ids decoder_input_ids", -1),
    *scalars("INT32", "decoder_input_lengths"),
    *ragged("FP32", "draft_logits", -1, -1),
    *scalars("FP32", "draft_acceptance_threshold"),
    *scalars("INT32", "end_id pad_id"),
    *ragged("INT32", "stop_words_list bad_words_list", 2, -1),
    *ragged("FP32", "embedding_bias", -1),
    *scalars("INT32", "beam_width"),
    *scalars("FP32", "temperature"),
    *scalars("INT32", "runtime_top_k"),
    *scalars("FP32", "runtime_top_p runtime_top_p_min runtime_top_p_decay"),
    *scalars("INT32", "runtime_top_p_reset_ids"),
    *scalars("FP32", "len_penalty"),
    *scalars("BOOL", "early_stopping"),
    *scalars("FP32", "repetition_penalty"),
    *scalars("INT32", "min_tokens"),
    *scalars("FP32", "beam_search_diversity_rate presence_penalty frequency_penalty"),
    *scalars("UINT64", "seed"),
    *scalars("BOOL", "return_log_probs return_context_logits return_generation_logits return_perf_metrics"),
    *scalars("BOOL", "return_num_input_tokens return_num_output_tokens"),
    *scalars("BOOL", "exclude_input_in_output stop streaming"),
    *ragged("FP16", "prompt_embedding_table", -1, -1),
    *ragged("UINT64", "prompt_table_extra_ids", -1),
    *scalars("INT32", "prompt_vocab_size"),
    *ragged("BOOL", "cross_attention_mask", -1, -1),
    *optional("FP32", "mrope_rotary_cos_sin", -1),
    *optional("INT64", "mrope_position_deltas", 1),
    *scalars("UINT64", "lora_task_id"),
    *ragged("FP16", "lora_weights", -1, -1),
    *ragged("INT32", "lora_config", -1, 3),
    *ragged("UINT8", "context_phase_params", -1),
    *ragged("BOOL", "skip_cross_attn_blocks", 1),
    *ragged("INT32", "retention_token_range_starts retention_token_range_ends", -1),
    *ragged("INT32", "retention_token_range_priorities retention_token_range_durations_ms", -1),
    *ragged("INT32", "retention_decode_priority retention_decode_duration_ms", 1),
    *ragged("STRING", "guided_decoding_guide_type guided_decoding_guide", 1),
    *ragged("INT32", "lookahead_window_size lookahead_ngram_size lookahead_verification_set_size", 1),
)
_LLM_OUTPUTS = (
    *required("INT32", "output_ids", -1, -1),
    *required("INT32", "sequence_length", -1),
    *_SCORES,
    *required("UINT8", "context_phase_params", -1),
    *_MEASURES,
    *_COUNTS,
)

_PREPROCESSING = ModelContract(
    PREPROCESSING,
    inputs=(
        *required("STRING", "QUERY", 1),
        *required("INT32", "REQUEST_OUTPUT_LEN", 1),
        *optional("STRING", "DECODER_QUERY", 1),
        *optional("UINT8", "IMAGE_BYTES", -1, -1, -1, -1),
        *optional("STRING", "IMAGE_URL", 1),
        *optional("UINT8", "VIDEO_BYTES", -1, -1, -1, -1),
        *optional("STRING", "BAD_WORDS_DICT STOP_WORDS_DICT EMBEDDING_BIAS_WORDS", -1),
        *optional("FP32", "EMBEDDING_BIAS_WEIGHTS", -1),
        *optional("INT32", "END_ID PAD_ID", 1),
        *optional("UINT64", "PROMPT_TABLE_EXTRA_ID", 1),
    ),
    outputs=(
        *required("INT32", "INPUT_ID", -1),
        *required("INT32", "REQUEST_INPUT_LEN", 1),
        *required("INT32", "DECODER_INPUT_ID", -1),
        *required("INT32", "REQUEST_DECODER_INPUT_LEN", 1),
        *required("INT32", "BAD_WORDS_IDS STOP_WORDS_IDS", 2, -1),
        *required("FP32", "EMBEDDING_BIAS", -1),
        *required("INT32", "REQUEST_OUTPUT_LEN", -1),
        *required("INT32", "OUT_END_ID OUT_PAD_ID", 1),
        *required("UINT64", "OUT_PROMPT_TABLE_EXTRA_IDS", -1),
        *required("FP16", "PIXEL_VALUES", -1, -1, -1, -1),
        *required("INT64", "ASPECT_RATIO_IDS", -1),
        *required("INT64", "ASPECT_RATIO_MASK", -1, -1),
        *required("INT64", "CROSS_ATTENTION_MASK", -1, -1, -1),
        *required("INT64", "IMAGE_SIZES", 2),
        *required("BOOL", "IS_VIDEO_INPUT", 1),
        *required("INT64", "ATTENTION_MASK", -1),
        *required("INT64", "IMAGE_GRID_THW", 3),
        *required("INT32", "VISION_INPUT_ID", -1),
    ),
)
_POSTPROCESSING = ModelContract(
    POSTPROCESSING,
    inputs=(*required("INT32", "TOKENS_BATCH", -1, -1), *required("INT32", "SEQUENCE_LENGTH", -1)),
    outputs=tuple(required("STRING", "OUTPUT", -1)),
)

_CLIENT_INPUTS = (
    *required("STRING", "text_input", 1),
    *required("INT32", "max_tokens", 1),
    *optional("STRING", "decoder_text_input", 1),
    *optional("INT32", "num_return_sequences", 1),
    *optional("STRING", "bad_words stop_words", -1),
    *optional("BOOL", "exclude_input_in_output", 1),
    *optional("INT32", "end_id pad_id top_k", 1),
    *optional("FP32", "top_p temperature length_penalty repetition_penalty", 1),
    *optional("INT32", "min_tokens", 1),
    *optional("FP32", "presence_penalty frequency_penalty", 1),
    *optional("UINT64", "seed", 1),
    *optional("BOOL", "return_log_probs return_context_logits return_generation_logits return_perf_metrics", 1),
    *optional("BOOL", "return_num_input_tokens return_num_output_tokens", 1),
    *optional("INT32", "beam_width", 1),
    *optional("BOOL", "stream", 1),
    *optional("FP16", "prompt_embedding_table", -1, -1),
    *optional("UINT64", "prompt_table_extra_id", 1),
    *optional("INT32", "prompt_vocab_size", 1),
    *optional("STRING", "embedding_bias_words", -1),
    *optional("FP32", "embedding_bias_weights", -1),
    *optional("UINT64", "lora_task_id", 1),
    *optional("FP16", "lora_weights", -1, -1),
    *optional("INT32", "lora_config", -1, 3),
    *optional("STRING", "guided_decoding_guide_type guided_decoding_guide", 1),
)
_CLIENT_OUTPUTS = (*required("STRING", "text_output", -1), *_SCORES, *_MEASURES, *_COUNTS)

_ENSEMBLE = ModelContract(ENSEMBLE, inputs=_CLIENT_INPUTS, outputs=_CLIENT_OUTPUTS)
# trtkit's own outputs come after NVIDIA's: the tokens of the response, why and after what the answer ended.
_BLS = ModelContract(
    BLS,
    inputs=(
        *_CLIENT_INPUTS,
        *optional("FP16", "image_input", -1, 3, -1, -1),
        *optional("UINT8", "image_bytes_input video_bytes_input", -1, -1, -1, -1),
        *optional("STRING", "image_url_input", 1),
        *optional("INT32", "num_draft_tokens", 1),
        *optional("BOOL", "use_draft_logits", 1),
    ),
    outputs=(
        *_CLIENT_OUTPUTS,
        *required("INT32", "output_ids", -1),
        *required("STRING", "finish_reason", 1),
        *required("INT32", "num_target_passes num_evicted_tokens", 1),
        *required("INT64", "draft_time_ns target_time_ns", 1),
    ),
)


# The engine's name -> the client's name for the same input, where they differ.
CLIENT_NAMES = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "streaming": "stream",
}


def llm_contract(name: str, tensorrt_llm: str) -> ModelContract:
    """The tensors of `tensorrt_llm` and of its copy for the draft, as release `tensorrt_llm` names them."""
    return _of_release(ModelContract(name, _LLM_INPUTS, _LLM_OUTPUTS), tensorrt_llm)


def contracts(tensorrt_llm: str, *, with_draft: bool) -> dict[str, ModelContract]:
    """Every model of a repository, by name, in the order in which they can be loaded."""
    llms = [TARGET, DRAFT] if with_draft else [TARGET]
    engines = [llm_contract(name, tensorrt_llm) for name in llms]
    ensemble = _of_release(_ENSEMBLE, tensorrt_llm)
    models = [_PREPROCESSING, _POSTPROCESSING, *engines, ensemble, bls_contract(tensorrt_llm)]
    return {model.name: model for model in models}


def bls_contract(tensorrt_llm: str = "") -> ModelContract:
    """The model that clients talk to; without a release, the newest one's.

    trtkit's clients know one set of names, so of an old release it has the new names besides.
    """
    old = _of_release(_BLS, tensorrt_llm)
    own_inputs = tuple(t for t in _BLS.inputs if t.name in OLD_NAMES and not old.declares(t.name))
    own_outputs = tuple(tensor for tensor in _COUNTS if tensor not in old.outputs)
    return ModelContract(BLS, (*old.inputs, *own_inputs), (*old.outputs, *own_outputs))


def _of_release(newest: ModelContract, tensorrt_llm: str) -> ModelContract:
    if not tensorrt_llm or _release(tensorrt_llm) >= (0, 20):
        return newest
    inputs = rename((t for t in newest.inputs if t.name not in _SINCE_0_20), OLD_NAMES)
    return ModelContract(newest.name, tuple(inputs), tuple(t for t in newest.outputs if t.name not in _SINCE_0_20))


def _release(version: str) -> tuple[int, ...]:
    """ "1.2.1" -> (1, 2); enough to tell the drifts apart."""
    return tuple(int(part) for part in version.split(".")[:2])
