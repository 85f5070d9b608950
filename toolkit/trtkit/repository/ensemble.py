"""Which tensor of the ensemble goes where. Knows three models' names for the same thing, nothing else."""

from trtkit.repository.pbtxt import EnsembleStep
from trtkit.serving.contract import CLIENT_NAMES, POSTPROCESSING, PREPROCESSING, TARGET, contracts

_TO_PREPROCESSING = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "DECODER_QUERY": "decoder_text_input",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
    "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
}
_PREPROCESSED = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
_TO_POSTPROCESSING = {"TOKENS_BATCH": "output_ids", "SEQUENCE_LENGTH": "sequence_length"}


def ensemble_steps(tensorrt_llm: str) -> tuple[EnsembleStep, ...]:
    """preprocessing -> tensorrt_llm -> postprocessing, as the tensors of that release are called.

    Triton demands that every input of the ensemble and every mapped output is used, and compares types and shapes.
    """
    models = contracts(tensorrt_llm, with_draft=False)
    ensemble = models["ensemble"]
    prepared = {inner: f"_{outer}" for outer, inner in _PREPROCESSED.items()}
    client_inputs = {tensor.name for tensor in ensemble.inputs}
    direct = {
        tensor.name: client
        for tensor in models[TARGET].inputs
        if tensor.name not in prepared and (client := CLIENT_NAMES.get(tensor.name, tensor.name)) in client_inputs
    }
    measures = {tensor.name: tensor.name for tensor in ensemble.outputs if tensor.name != "text_output"}
    tokens = {outer: f"_{outer}" for outer in _TO_POSTPROCESSING}
    answers = {inner: tokens[outer] for outer, inner in _TO_POSTPROCESSING.items()}
    return (
        EnsembleStep(PREPROCESSING, _TO_PREPROCESSING, {outer: f"_{outer}" for outer in _PREPROCESSED}),
        EnsembleStep(TARGET, prepared | direct, answers | measures),
        EnsembleStep(POSTPROCESSING, tokens, {"OUTPUT": "text_output"}),
    )
