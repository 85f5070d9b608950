"""CacheOptions: how keys and values are kept. Knows ranges, no tensors and no model."""

from dataclasses import dataclass
from typing import Literal, get_args

from trtkit.errors import InputError

KvDtype = Literal["auto", "float", "fp8", "int8", "int4"]
ReuseRule = Literal["off", "full_blocks", "tokens"]
# Channels of a head that share a step and a zero in an INT4 cache; a smaller head is one group.
INT4_GROUP = 32


@dataclass(frozen=True)
class CacheOptions:
    """One choice per field; the default keeps every token in the format that the checkpoint asks for.

    dtype           "auto" is the checkpoint's kv_cache_quant_algo, "float" the model's own dtype
    block_size      tokens per block, a power of two
    num_blocks      blocks of the whole pool; None is room for max_batch_size sequences of max_seq_len
    reuse           "full_blocks": whole blocks of finished requests, as TensorRT-LLM without partial reuse; "tokens":
                    the longest known prefix to the token, of running requests too
    window_tokens   most recent tokens that a token sees, itself included; None keeps all
    sink_tokens     first tokens that stay visible beside a window
    heavy_tokens    tokens between sinks and window that stay because most attention went to them so far (H2O), chosen
                    by each layer and KV head for itself; reuse must be "off": which stay depends on the whole text
    """

    dtype: KvDtype = "auto"
    block_size: int = 64
    num_blocks: int | None = None
    reuse: ReuseRule = "tokens"
    window_tokens: int | None = None
    sink_tokens: int = 0
    heavy_tokens: int = 0

    def check(self) -> None:
        """Raise InputError KV-OPTIONS that names every value out of its range."""
        problems = [what for what, is_wrong in self._problems().items() if is_wrong]
        if problems:
            raise InputError("; ".join(problems), "send values in these ranges", code="KV-OPTIONS")

    def _problems(self) -> dict[str, bool]:
        has_window = self.window_tokens is not None
        return {
            f"dtype must be one of {', '.join(get_args(KvDtype))}, got {self.dtype}": self.dtype
            not in get_args(KvDtype),
            f"reuse must be one of {', '.join(get_args(ReuseRule))}, got {self.reuse}": self.reuse
            not in get_args(ReuseRule),
            f"block_size must be a power of two, got {self.block_size}": self.block_size < 1
            or bool(self.block_size & (self.block_size - 1)),
            f"num_blocks must be at least 1, got {self.num_blocks}": self.num_blocks is not None
            and self.num_blocks < 1,
            f"window_tokens must be at least 1, got {self.window_tokens}": self.window_tokens is not None
            and self.window_tokens < 1,
            f"sink_tokens must be at least 0, got {self.sink_tokens}": self.sink_tokens < 0,
            "sink_tokens needs window_tokens": self.sink_tokens > 0 and not has_window,
            f"heavy_tokens must be at least 0, got {self.heavy_tokens}": self.heavy_tokens < 0,
            "heavy_tokens needs window_tokens": self.heavy_tokens > 0 and not has_window,
            'heavy_tokens needs reuse="off"': self.heavy_tokens > 0 and self.reuse != "off",
        }
