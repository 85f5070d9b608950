"""Decoder: rows of tokens become logits. Knows weights and the cache's tensors, no sequences and no sampling."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trtkit.reference.batch import Batch
from trtkit.reference.kv_cache.storage import KvStorage
from trtkit.reference.model.attention import Attention, TilePlan
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.linear import MIN_ROWS, Linear
from trtkit.reference.model.rotary import rotate


@dataclass(frozen=True)
class Layer:
    """The weights of one layer.

    qkv answers [Q ; K ; V], fc_and_gate [activated part ; the other part]. head_norm [Q + K, D] is Qwen3's: it scales
    every query and key head after normalising it.
    """

    input_norm: Tensor
    qkv: Linear
    head_norm: Tensor | None
    dense: Linear
    post_norm: Tensor
    fc_and_gate: Linear
    proj: Linear


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder.

    V vocab_size, E hidden_size, V' rows of the head: all, or those of a draft's vocabulary.
        embedding   [V, E]
        final_norm  [E]
        vocabulary  [V'] the token id of every row of the head; None when they are all tokens in order
        rotation    [T, 1, D / 2] complex64
    """

    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Linear
    vocabulary: Tensor | None
    rotation: Tensor


class Decoder:
    """Runs passes over a cache it is given.

    N rows of a pass, E hidden_size, V vocab_size; Q and K query and key heads, D head_dim.
    """

    def __init__(self, config: ModelConfig, weights: Weights, cache: KvStorage) -> None:
        self.config = config
        self._weights = weights
        self._cache = cache
        self._device = weights.embedding.device
        self._attention = Attention(
            num_kv_heads=config.num_kv_heads,
            group_size=config.num_q_heads // config.num_kv_heads,
            head_dim=config.head_dim,
            capacity=cache.capacity,
            rules=config.attention_rules,
            like=weights.embedding,
        )

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """Compute the rows of a batch, store their keys and values, return the logits of its choosing rows.

        The logits leave the head in the model's dtype, like TensorRT-LLM's, and are then float32.

            returns  [len(batch.choosing_rows), V] float32
        """
        num_rows = len(batch.token_ids)
        padding = [0] * (MIN_ROWS - num_rows)  # computed, never stored, never read
        hidden = functional.embedding(self._ints(batch.token_ids + padding), self._weights.embedding)
        rotation = self._weights.rotation[self._ints(batch.positions + padding)]
        cache_rows = self._ints(batch.cache_rows)
        mixed = hidden.new_zeros(hidden.shape[0], self.config.num_q_heads * self.config.head_dim)
        tiles = self._attention.plan(batch.tiles, mixed)
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(hidden, layer.input_norm)
            hidden = hidden + layer.dense(self._attend(index, layer.qkv(normed), rotation, cache_rows, tiles))
            normed = self._norm(hidden, layer.post_norm)
            hidden = hidden + layer.proj(self._activate(layer.fc_and_gate(normed)))
        return self._head(hidden, batch.choosing_rows)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.config.hidden_size,), weight, self.config.norm_eps)

    def _attend(self, index: int, qkv: Tensor, rotation: Tensor, cache_rows: Tensor, tiles: TilePlan) -> Tensor:
        """Rotate, store, attend.

        qkv      [N, (Q + 2 K) * D]; its keys are rotated in place
        returns  [N, Q * D]
        """
        num_q, num_kv, head_dim = self.config.num_q_heads, self.config.num_kv_heads, self.config.head_dim
        heads = qkv.view(len(qkv), -1, head_dim)[:, : num_q + num_kv]
        norm = self._weights.layers[index].head_norm
        turned = rotate(heads if norm is None else self._norm_heads(heads, norm), rotation)
        if turned is not heads:
            heads[:, num_q:].copy_(turned[:, num_q:])
        self._cache.write(index, cache_rows, qkv[: len(cache_rows), num_q * head_dim :])
        return tiles.run(index, turned[:, :num_q], self._cache.keys[index], self._cache.values[index])

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """[N, Q + K, D], each head for itself."""
        return functional.rms_norm(heads, heads.shape[2:], None, self.config.norm_eps) * weight

    def _activate(self, fc_and_gate: Tensor) -> Tensor:
        """silu(fc) * gate. [N, 2 I] -> [N, I]"""
        fc, gate = fc_and_gate.chunk(2, dim=1)
        return functional.silu(fc).mul_(gate)

    def _head(self, hidden: Tensor, choosing_rows: list[int]) -> Tensor:
        """Final norm and vocabulary projection of the rows that choose tokens; -inf where a draft has no logits."""
        if not choosing_rows:
            return hidden.new_empty(0, self.config.vocab_size, dtype=torch.float32)
        padding = choosing_rows[:1] * (MIN_ROWS - len(choosing_rows))
        rows = hidden[self._ints(choosing_rows + padding)]
        logits = self._weights.head(self._norm(rows, self._weights.final_norm))[: len(choosing_rows)].float()
        vocabulary = self._weights.vocabulary
        if vocabulary is None:
            return logits
        whole = logits.new_full((len(logits), self.config.vocab_size), -torch.inf)
        return whole.index_copy_(1, vocabulary, logits)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
