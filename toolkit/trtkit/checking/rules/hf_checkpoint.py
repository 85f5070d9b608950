"""Rules about one Hugging Face checkpoint beyond what its readers refuse. Knows no pair and no deployment."""

from collections.abc import Iterable

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.rules.tokenizer_range import tokenizer_beyond_model
from trtkit.checking.subjects.hf_checkpoint import HfCheckpoint


def _tokenizer_beyond_model(checkpoint: HfCheckpoint) -> Iterable[Hit]:
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    if spec is not None and tokenizer is not None and tokenizer.max_id >= spec.vocab_size:
        yield hit("config.json:vocab_size", role="checkpoint", largest=tokenizer.max_id, size=spec.vocab_size)


def _other_dtype(checkpoint: HfCheckpoint) -> Iterable[Hit]:
    spec, weights = checkpoint.spec, checkpoint.weights
    if spec is None or weights is None or spec.dtype is None:
        return
    stored = {tensor.dtype for tensor in weights.values()}
    if stored and spec.dtype not in stored:
        yield hit("config.json:dtype", config=spec.dtype, stored=", ".join(sorted(stored)))


def _double_bos(checkpoint: HfCheckpoint) -> Iterable[Hit]:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None or not tokenizer.chat_template or not tokenizer.adds_bos or not tokenizer.bos_token:
        return
    if "bos_token" in tokenizer.chat_template or tokenizer.bos_token in tokenizer.chat_template:
        yield hit("tokenizer_config.json:chat_template", bos=tokenizer.bos_token)


def _scaled_kv(checkpoint: HfCheckpoint) -> Iterable[Hit]:
    """KV scales in a checkpoint that does not say that it is quantised."""
    if checkpoint.kv_scales and checkpoint.quantized is None:
        yield hit("", count=len(checkpoint.kv_scales), layers=checkpoint.num_layers)


HF_RULES: tuple[Rule[HfCheckpoint], ...] = (
    tokenizer_beyond_model(
        _tokenizer_beyond_model, hit("config.json:vocab_size", role="checkpoint", largest=32016, size=32000)
    ),
    Rule(
        code="CKPT-OTHER-DTYPE",
        severity="note",
        looks_at="checkpoint",
        when="config.json names another dtype than the weights have",
        cause="config.json says {config}, the weights are {stored}",
        fix="nothing to do; the weights are read as they are stored",
        source="safetensors headers",
        find=_other_dtype,
        example=hit("config.json:dtype", config="float32", stored="bfloat16"),
    ),
    Rule(
        code="TOK-BOS",
        severity="note",
        looks_at="checkpoint",
        when="the chat template starts with the BOS token, and the tokenizer adds one too",
        cause="the chat template already writes {bos}, and the tokenizer puts another before every text",
        fix="encode templated prompts without special tokens, or the model reads {bos} twice",
        source="vLLM PR #16976",
        find=_double_bos,
        example=hit("tokenizer_config.json:chat_template", bos="<s>"),
    ),
    Rule(
        code="CKPT-KV-SCALES",
        severity="note",
        looks_at="checkpoint",
        when="the checkpoint brings KV cache scales, and no file says what they are for",
        cause="{count} of {layers} layers bring KV scales (k_scale, v_scale)",
        fix="add the hf_quant_config.json that belongs to them, if the LLM API is to use them",
        source="ModelOpt's unified Hugging Face export; vLLM issue #54623",
        find=_scaled_kv,
        example=hit("", count=32, layers=32),
    ),
)
