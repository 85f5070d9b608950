"""Decoder: rows of tokens become logits. Knows weights and attention, no sequences and no sampling."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trtkit.reference.batch import Batch
from trtkit.reference.model.attention import Attention, TilePlan
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.heavy_attention import HeavyAttention, HeavyPlan
from trtkit.reference.model.linear import MIN_ROWS
from trtkit.reference.model.norm import Norm
from trtkit.reference.model.rotary import rotate, rotation_at, turned_by
from trtkit.reference.model.weights import Weights


class Computed(NamedTuple):
    """What a pass brings.

    R choosing rows, V vocab_size.
        logits     [R, V] float32
        is_finite  of every row, whether all that the layers made of it is; a quantised cache would hide that it is not
    """

    logits: Tensor
    is_finite: list[bool]


class Decoder:
    """Runs passes over the cache of its attention.

    N rows of a pass, E hidden_size, V vocab_size; Q and K query and key heads, D head_dim.
    """

    def __init__(self, config: ModelConfig, weights: Weights, attention: Attention | HeavyAttention) -> None:
        self.config = config
        self._weights = weights
        self._attention = attention
        self._device = weights.embedding.device

    @torch.inference_mode()
    def run(self, batch: Batch) -> Computed:
        """Compute the rows of a batch, store their keys and values, return the logits of its choosing rows.

        The logits leave the head in the model's dtype, like TensorRT-LLM's, and are then float32.
        """
        num_rows = len(batch.token_ids)
        padding = [0] * (MIN_ROWS - num_rows)  # computed, never stored, never read
        positions = self._ints(batch.positions + padding)
        hidden = self._embed(self._ints(batch.token_ids + padding), positions)
        farthest = max(batch.positions)
        rotations = [rotation_at(table, positions, farthest) for table in self._weights.rotations]
        cache_rows = self._ints(batch.cache_rows)
        mixed = hidden.new_zeros(hidden.shape[0], self.config.num_q_heads * self.config.head_dim)
        tiles = self._attention.plan(batch.spans, mixed, self._turn(positions))
        for index, layer in enumerate(self._weights.layers):
            rotation = None if layer.rope is None else rotations[layer.rope]
            qkv = layer.qkv(self._norm(hidden, layer.input_norm))
            attended = layer.dense(self._attend(index, qkv, rotation, cache_rows, tiles))
            hidden = hidden + (attended if layer.attention_norm is None else layer.attention_norm(attended))
            answer = layer.mlp(self._norm(hidden, layer.post_norm), num_rows)
            hidden = hidden + (answer if layer.mlp_norm is None else layer.mlp_norm(answer))
        is_finite = hidden[:num_rows].sum(1, dtype=torch.float32).isfinite().tolist()
        return Computed(self._head(hidden, batch.choosing_rows), is_finite)

    def _turn(self, positions: Tensor) -> Tensor | None:
        """From a query's own position to the last one inside the cache, from where it looks at sinks."""
        last = self._attention.last_position
        return None if last is None else turned_by(self._weights.rotations[0], last - positions)

    def _embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """The rows of the embedding, scaled, and those of the positions where they are learned. [N, E]"""
        weights = self._weights
        hidden = functional.embedding(token_ids, weights.embedding)
        if weights.embedding_scale is not None:
            hidden = hidden * weights.embedding_scale
        return hidden if weights.positions is None else hidden + functional.embedding(positions, weights.positions)

    def _norm(self, hidden: Tensor, norm: Norm) -> Tensor:
        """Every norm of the residual stream passes here; who follows the stream overrides it."""
        return norm(hidden)

    def _attend(
        self, index: int, qkv: Tensor, rotation: Tensor | None, cache_rows: Tensor, tiles: TilePlan | HeavyPlan
    ) -> Tensor:
        """Rotate, store, attend.

        qkv      [N, (Q + 2 K) * D]; its keys are normalised and rotated in place
        returns  [N, Q * D]
        """
        num_q, num_kv, head_dim = self.config.num_q_heads, self.config.num_kv_heads, self.config.head_dim
        heads = qkv.view(len(qkv), -1, head_dim)[:, : num_q + num_kv]
        norm = self._weights.layers[index].head_norm
        turned = heads if norm is None else self._norm_heads(heads, norm)
        if rotation is not None:
            turned = rotate(turned, rotation)
        if turned is not heads:
            heads[:, num_q:].copy_(turned[:, num_q:])
        self._attention.storage.write(index, cache_rows, qkv[: len(cache_rows), num_q * head_dim :])
        return tiles.run(index, turned[:, :num_q])

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> Tensor:
        """[N, Q + K, D], each head for itself."""
        return functional.rms_norm(heads, heads.shape[2:], None, self.config.norm_eps) * weight

    def _head(self, hidden: Tensor, choosing_rows: list[int]) -> Tensor:
        """Final norm and vocabulary projection of the rows that choose tokens; -inf where a draft has no logits."""
        if not choosing_rows:
            return hidden.new_empty(0, self.config.vocab_size, dtype=torch.float32)
        padding = choosing_rows[:1] * (MIN_ROWS - len(choosing_rows))
        rows = hidden[self._ints(choosing_rows + padding)]
        logits = self._weights.head(self._norm(rows, self._weights.final_norm))[: len(choosing_rows)].float()
        if self.config.logit_cap is not None:
            logits = torch.tanh_(logits / self.config.logit_cap).mul_(self.config.logit_cap)
        vocabulary = self._weights.vocabulary
        if vocabulary is None:
            return logits
        whole = logits.new_full((len(logits), self.config.vocab_size), -torch.inf)
        return whole.index_copy_(1, vocabulary, logits)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
