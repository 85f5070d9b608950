"""What flows through a model, layer by layer: the oracle's and a converted checkpoint's. Judges nothing."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from trtkit.errors import InputError
from trtkit.evaluate.oracle import Oracle
from trtkit.reference.assembly import LoneSequence, Sizes, assemble
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.model.attention import Attention
from trtkit.reference.model.config import ModelConfig, read_config
from trtkit.reference.model.decoder import Decoder
from trtkit.reference.model.load import WeightLoader
from trtkit.reference.model.norm import Norm
from trtkit.reference.model.weights import Weights


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


def trace_oracle(oracle: Oracle, token_ids: Sequence[int]) -> Trace:
    """The oracle's pass. Raises InputError for an architecture whose norms do not stand where Llama's do."""
    with _watched_norms(oracle.model) as seen, torch.inference_mode():
        logits = oracle.model(input_ids=torch.tensor([list(token_ids)], device=oracle.model.device)).logits
    return Trace(tuple(state[0].float() for state in seen), logits[0].float())


@contextmanager
def _watched_norms(model: Any) -> Iterator[list[Tensor]]:
    """A list that receives what enters each norm, in the order of computation."""
    body = model.model
    names = ("input_layernorm", "post_attention_layernorm")
    extra = [
        name for layer in body.layers for name, _ in layer.named_children() if "norm" in name and name not in names
    ]
    if extra or not all(hasattr(layer, name) for layer in body.layers for name in names):
        raise InputError(
            f"{type(model).__name__} cannot be followed layer by layer",
            "use trtkit parity check --in-process, which compares answers",
            code="TRACE-ARCHITECTURE",
        )
    seen: list[Tensor] = []
    with ExitStack() as hooks:
        for norm in [*(getattr(layer, name) for layer in body.layers for name in names), body.norm]:
            hooks.callback(norm.register_forward_pre_hook(lambda _, args: seen.append(args[0])).remove)
        yield seen


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
