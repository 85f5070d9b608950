"""A TensorRT-LLM checkpoint becomes the weights of a decoder. Knows names and fusions, not how they are used."""

from pathlib import Path

import torch
from torch import Tensor

from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.decoder import Layer, Weights
from trtkit.reference.model.linear import Linear, can_pack, make_linear
from trtkit.reference.model.rotary import interleave_halves, rotation_table
from trtkit.reference.model.shards import Shards


class WeightLoader:
    """Reads every tensor of a checkpoint once, fuses what is computed together, packs it for the processor.

    E hidden_size, I intermediate_size, Q and K rows of all query and key heads, V vocab_size.
    """

    def __init__(self, folder: Path, config: ModelConfig, device: torch.device, *, packed: bool | None = None) -> None:
        self._folder = folder
        self._config = config
        self._device = device
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._packed = can_pack(self._dtype, device) if packed is None else packed

    def load(self, max_seq_len: int) -> Weights:
        """All weights. Raises CheckpointError when a tensor is missing, of another shape, or left over."""
        config = self._config
        vocab_shape = (config.vocab_size, config.hidden_size)
        with torch.inference_mode(), Shards(self._folder, config) as shards:
            last_stage = config.pipeline_parallel - 1
            embedding = self._move(shards.take("transformer.vocab_embedding.weight", vocab_shape, 0))
            head = shards.take("lm_head.weight", vocab_shape, last_stage) if shards.has("lm_head.weight") else embedding
            vocabulary = self._vocabulary()
            weights = Weights(
                embedding=embedding,
                layers=tuple(self._layer(shards, stage, index) for stage, index in shards.stages()),
                final_norm=self._move(shards.take("transformer.ln_f.weight", (config.hidden_size,), last_stage)),
                head=self._linear(head if vocabulary is None else head[vocabulary], None),
                vocabulary=vocabulary,
                rotation=rotation_table(config.rope, config.head_dim, max_seq_len).to(self._device),
            )
            shards.refuse_leftovers()
        return weights

    def _vocabulary(self) -> Tensor | None:
        """The ids of a draft that computes the logits of some tokens only."""
        token_ids = read_draft_vocabulary(self._folder, self._config.vocab_size)
        return None if token_ids is None else torch.tensor(token_ids, device=self._device)

    def _layer(self, shards: Shards, stage: int, index: int) -> Layer:
        config, prefix = self._config, f"transformer.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        num_q_rows = config.num_q_heads * config.head_dim

        def take(name: str, *shape: int) -> Tensor:
            return shards.take(prefix + name, shape, stage)

        def bias(name: str, num_rows: int, *, exists: bool) -> Tensor | None:
            return take(f"{name}.bias", num_rows) if exists else None

        num_qkv_rows = num_q_rows + 2 * config.num_kv_heads * config.head_dim
        qkv_bias = bias("attention.qkv", num_qkv_rows, exists=config.has_qkv_bias)
        norms = [
            take(f"attention.{which}_layernorm.weight", config.head_dim) for which in "qk" if config.has_head_norms
        ]
        fc_bias = bias("mlp.fc", inner, exists=config.has_mlp_bias)
        gate_bias = bias("mlp.gate", inner, exists=config.has_mlp_bias)
        return Layer(
            input_norm=self._move(take("input_layernorm.weight", hidden)),
            qkv=self._linear(
                self._interleave(take("attention.qkv.weight", num_qkv_rows, hidden)),
                None if qkv_bias is None else self._interleave(qkv_bias),
            ),
            head_norm=self._head_norm(*norms) if norms else None,
            dense=self._linear(
                take("attention.dense.weight", hidden, num_q_rows),
                bias("attention.dense", hidden, exists=config.has_dense_bias),
            ),
            post_norm=self._move(take("post_layernorm.weight", hidden)),
            fc_and_gate=self._linear(
                torch.cat([take("mlp.fc.weight", inner, hidden), take("mlp.gate.weight", inner, hidden)]),
                None if fc_bias is None or gate_bias is None else torch.cat([fc_bias, gate_bias]),
            ),
            proj=self._linear(
                take("mlp.proj.weight", hidden, inner), bias("mlp.proj", hidden, exists=config.has_mlp_bias)
            ),
        )

    def _interleave(self, qkv: Tensor) -> Tensor:
        """Make rotated pairs neighbours in the query and key rows; the value rows stay."""
        num_rotated = (self._config.num_q_heads + self._config.num_kv_heads) * self._config.head_dim
        return torch.cat([interleave_halves(qkv[:num_rotated], self._config.head_dim), qkv[num_rotated:]])

    def _head_norm(self, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        """One row per query and key head, in the order of the reordered dimensions."""
        query, key = (self._move(interleave_halves(norm, self._config.head_dim)) for norm in (query_norm, key_norm))
        return torch.cat([query.expand(self._config.num_q_heads, -1), key.expand(self._config.num_kv_heads, -1)])

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        moved = None if bias is None else self._move(bias)
        return make_linear(self._move(weight), moved, packed=self._packed)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)
