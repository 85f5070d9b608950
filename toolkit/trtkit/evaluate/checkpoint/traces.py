"""What flows through a model, layer by layer: the oracle's and a converted checkpoint's. Judges nothing."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from trtkit.errors import InputError
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.reference.assembly import LoneSequence, Sizes, assemble
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.model.attention import Attention
from trtkit.reference.model.config import ModelConfig, read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader
from trtkit.reference.model.norm import Norm
from trtkit.reference.model.weights import Weights

# What transformers calls them: Gemma 2 and 3, Llama and its like, GPT-2; and the norms of branches.
_GEMMA = ("input_layernorm", "pre_feedforward_layernorm")
_STREAM_NORMS = (_GEMMA, ("input_layernorm", "post_attention_layernorm"), ("ln_1", "ln_2"))
_BRANCH_NORMS: dict[tuple[str, ...], tuple[str, ...]] = {
    _GEMMA: ("post_attention_layernorm", "post_feedforward_layernorm")
}


@dataclass(frozen=True)
class Trace:
    """One pass over T tokens through L layers.

    E hidden size, V vocabulary.
        stream  2 L + 1 tensors [T, E]: the residual stream before attention and before the MLP of each layer, and
                after the last layer
        logits  [T, V] float32
    """

    stream: tuple[Tensor, ...]
    logits: Tensor


def trace_oracle(oracle: Oracle, token_ids: Sequence[int], cache: Any = None) -> Trace:
    """The oracle's pass, through this cache, if one is given. Raises InputError for an architecture whose norms stand
    where no known family's do."""
    with _watched_norms(oracle.model) as seen:
        logits = oracle.logits(token_ids, cache)
    return Trace(tuple(state[0].float() for state in seen), logits)


@contextmanager
def _watched_norms(model: Any) -> Iterator[list[Tensor]]:
    """A list that receives what enters each norm, in the order of computation."""
    body = model.base_model
    layers: Any = getattr(body, "layers", None) or getattr(body, "h", ())
    final: Any = getattr(body, "norm", None) or getattr(body, "ln_f", None)
    norms = [norm for layer in layers for norm in _stream_norms(layer)]
    if final is None or len(norms) != 2 * len(layers):
        raise InputError(
            f"{type(model).__name__} cannot be followed layer by layer",
            "use trtkit parity check --in-process, which compares answers",
            code="TRACE-ARCHITECTURE",
        )
    seen: list[Tensor] = []
    with ExitStack() as hooks:
        for norm in [*norms, final]:
            hooks.callback(norm.register_forward_pre_hook(lambda _, args: seen.append(args[0])).remove)
        yield seen


def _stream_norms(layer: Any) -> list[Any]:
    """The two norms of a layer that read the residual stream; its other norms, where it has any, read a branch."""
    norms = {name: module for name, module in layer.named_children() if "norm" in name or name.startswith("ln_")}
    found: tuple[str, ...] = next((names for names in _STREAM_NORMS if set(names) <= set(norms)), ())
    is_known = set(norms) <= {*found, *_BRANCH_NORMS.get(found, ())}
    return [norms[name] for name in found] if is_known else []


class CheckpointTracer:
    """Runs a converted checkpoint through the reference decoder and keeps what enters each of its norms."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self._weights = weights

    @classmethod
    def load(cls, checkpoint: Path, max_seq_len: int) -> Self:
        """Read a TensorRT-LLM checkpoint directory. Raises CheckpointError when it cannot be executed."""
        config = read_config(checkpoint)
        return cls(config, WeightLoader(checkpoint, config, torch.device("cpu")).load(max_seq_len))

    @property
    def kv_dtype(self) -> str:
        """What keys and values are stored in; "auto" is the dtype of the model."""
        return (self.config.quantization.kv_cache_algorithm or "auto").lower()

    def trace(self, token_ids: Sequence[int]) -> Trace:
        """One pass, every token's logits included."""
        sizes = Sizes(1, len(token_ids), len(token_ids))
        assembly = assemble(self.config, self._weights, CacheOptions(reuse="off"), sizes, _WatchedDecoder)
        logits = LoneSequence(assembly).feed(token_ids)
        assert isinstance(assembly.decoder, _WatchedDecoder)
        return Trace(tuple(state[: len(token_ids)].float() for state in assembly.decoder.seen), logits)


class _WatchedDecoder(Decoder):
    """The decoder that serves, with an ear at each norm: what enters it is the residual stream."""

    def __init__(self, config: ModelConfig, weights: Weights, attention: Attention) -> None:
        super().__init__(config, weights, attention)
        self.seen: list[Tensor] = []

    def _norm(self, hidden: Tensor, norm: Norm) -> Tensor:
        self.seen.append(hidden)
        return super()._norm(hidden, norm)
