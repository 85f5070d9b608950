"""EngineSpec: the limits and features an engine is built with. Knows no command line and no file."""

from dataclasses import dataclass

DEFAULT_MAX_NUM_TOKENS = 8192
# Weight formats with which the builder keeps paged context FMHA on an FP8 KV cache (builder.py lists them).
FP8_ATTENTION_QUANTIZATION = frozenset({"fp8", "w4a8_awq", "nvfp4"})
MIN_FP8_SM = 89


@dataclass(frozen=True)
class EngineSpec:
    """What one engine must hold; TensorRT-LLM's names for these stand in the emitters.

    max_seq_len counts prompt and answer and *not* the draft tokens; the builder adds max_draft_len to it
    (facts: builder.py writes max_seq_len + max_draft_len into the engine's config).
    speculates: one of a draft-target pair. quantization and kv_dtype are the YAML's names. attention_sinks: the
    runtime keeps sinks (--streamingllm). generation_logits: the engine hands out the logits of what it generates.
    sm: of the GPU that the engine is for, None when it is not known.
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_draft_len: int = 0
    block_size: int = 32
    kv_dtype: str = "auto"
    quantization: str = "none"
    reuse: bool = True
    attention_sinks: bool = False
    speculates: bool = False
    generation_logits: bool = False
    sm: int | None = None

    @property
    def built_max_seq_len(self) -> int:
        """The value that stands in the engine's config.json."""
        return self.max_seq_len + self.max_draft_len

    @property
    def max_num_tokens(self) -> int:
        """Tokens of one step: the builder's default, raised and cut to what one step must and can hold.

        Without chunked context a prompt is taken in one piece. In a draft-target pair every step sends the whole text
        so far as the prompt, so that piece may be a whole sequence. The builder cuts the number to what all sequences
        hold together and raises it to one block (check_max_num_tokens), then to a full draft of every sequence.
        """
        longest = self.max_seq_len if self.speculates else self.max_input_len
        useful = min(max(DEFAULT_MAX_NUM_TOKENS, longest), self.max_batch_size * self.max_seq_len)
        return max(useful, self.block_size, self.max_batch_size * (self.max_draft_len + 1))

    @property
    def can_page_context(self) -> bool:
        """Whether the builder leaves paged context FMHA on when asked for it.

        It switches it off for streamingllm, for an INT8 KV cache, and for an FP8 KV cache whose weights or GPU have no
        FP8 context attention (builder.py, in this order).
        """
        if self.attention_sinks or self.kv_dtype == "int8":
            return False
        return self.kv_dtype != "fp8" or self.has_fp8_attention

    @property
    def has_fp8_attention(self) -> bool:
        """Whether weights and GPU allow attention over an FP8 cache in FP8; an unknown GPU is taken to."""
        new_enough = self.sm is None or self.sm >= MIN_FP8_SM
        return self.quantization in FP8_ATTENTION_QUANTIZATION and new_enough

    @property
    def paged_context_fmha(self) -> bool:
        """Asked for when blocks are to be reused, which needs it, and possible."""
        return self.reuse and self.can_page_context

    @property
    def fp8_context_fmha(self) -> bool:
        """Asked for only on an FP8 cache: without one the builder asserts (TensorRT-LLM issue #2112)."""
        return self.kv_dtype == "fp8" and self.has_fp8_attention
