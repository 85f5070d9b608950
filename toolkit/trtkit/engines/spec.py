"""EngineSpec: the limits and features an engine is built with. Knows no command line and no file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSpec:
    """What one engine must hold; TensorRT-LLM's names for these stand in the emitters.

    max_seq_len counts prompt and answer and *not* the draft tokens; the builder adds max_draft_len to it
    (facts: builder.py writes max_seq_len + max_draft_len into the engine's config).
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_draft_len: int = 0
    block_size: int = 32
    kv_dtype: str = "auto"

    @property
    def built_max_seq_len(self) -> int:
        """The value that stands in the engine's config.json."""
        return self.max_seq_len + self.max_draft_len

    @property
    def max_num_tokens(self) -> int:
        """Tokens of one step: the builder's default, raised until every sequence can verify a full draft."""
        return max(8192, self.max_batch_size * (self.max_draft_len + 1))
