"""A TensorRT-LLM checkpoint becomes the weights of a decoder. Knows names and fusions, not how they are used."""

import math
from pathlib import Path

import torch
from torch import Tensor

from trtkit.checkpoints.draft_vocabulary import read_draft_vocabulary
from trtkit.errors import CheckpointError
from trtkit.reference.model.config import ModelConfig
from trtkit.reference.model.joins import Cut
from trtkit.reference.model.layer_loader import LayerLoader
from trtkit.reference.model.linear import can_pack, make_linear
from trtkit.reference.model.norm import Norm, make_norm
from trtkit.reference.model.rotary import rotation_table
from trtkit.reference.model.shards import Shards
from trtkit.reference.model.weights import Weights

_EMBEDDING_CUTS: dict[int | None, Cut] = {None: "whole", 0: "vocabulary", 1: "columns"}


class WeightLoader:
    """Reads every tensor of a checkpoint once, fuses what is computed together, packs it for the processor.

    E hidden_size, V vocab_size.
    """

    def __init__(self, folder: Path, config: ModelConfig, device: torch.device, *, packed: bool | None = None) -> None:
        self._folder = folder
        self._config = config
        self._device = device
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._packed = can_pack(self._dtype, device) if packed is None else packed

    def load(self, max_seq_len: int) -> Weights:
        """All weights, with rotations for max_seq_len positions.

        Raises CheckpointError when a tensor is missing, of another shape, or left over, and when the model has fewer
        learned positions.
        """
        with torch.inference_mode(), Shards(self._folder, self._config) as shards:
            weights = self._load(shards, max_seq_len)
            shards.files.refuse_leftovers()
        return weights

    def _load(self, shards: Shards, max_seq_len: int) -> Weights:
        config = self._config
        vocab_shape, last_stage = (config.vocab_size, config.hidden_size), config.pipeline_parallel - 1
        cut = _EMBEDDING_CUTS[config.embedding_split_dim]
        embedding = self._move(shards.take("transformer.vocab_embedding.weight", vocab_shape, 0, cut))
        has_head = shards.files.has("lm_head.weight")
        head = shards.take("lm_head.weight", vocab_shape, last_stage, "vocabulary") if has_head else embedding
        vocabulary = self._vocabulary()
        layers = LayerLoader(shards, config, self._move, packed=self._packed)
        scale = torch.tensor(math.sqrt(config.hidden_size), dtype=self._dtype, device=self._device)
        return Weights(
            embedding=embedding,
            embedding_scale=scale if config.family.scales_embedding else None,
            positions=self._positions(shards, max_seq_len) if config.family.learns_positions else None,
            layers=tuple(
                layers.load(stage, index, layer)
                for (stage, index), layer in zip(shards.files.stages(), config.layers, strict=True)
            ),
            final_norm=self._final_norm(shards, last_stage),
            head=make_linear(self._move(head if vocabulary is None else head[vocabulary]), None, packed=self._packed),
            vocabulary=vocabulary,
            rotations=tuple(
                rotation_table(rope, config.head_dim, max_seq_len).to(self._device) for rope in config.ropes
            ),
        )

    def _vocabulary(self) -> Tensor | None:
        """The ids of a draft that computes the logits of some tokens only."""
        token_ids = read_draft_vocabulary(self._folder, self._config.vocab_size)
        return None if token_ids is None else torch.tensor(token_ids, device=self._device)

    def _positions(self, shards: Shards, max_seq_len: int) -> Tensor:
        config = self._config
        if max_seq_len > config.max_position_embeddings:
            raise CheckpointError(
                f"the model has {config.max_position_embeddings} positions, max_seq_len is {max_seq_len}",
                "choose a smaller max_seq_len",
                code="REF-POSITIONS",
                where=str(self._folder),
            )
        shape = (config.max_position_embeddings, config.hidden_size)
        return self._move(shards.take("transformer.position_embedding.weight", shape, 0))

    def _final_norm(self, shards: Shards, stage: int) -> Norm:
        config, name = self._config, "transformer.ln_f"
        names = ("weight", "bias") if config.family.norm == "layer" else ("weight",)
        tensors = [self._move(shards.take(f"{name}.{end}", (config.hidden_size,), stage)) for end in names]
        return make_norm(config.family.norm, tensors[0], tensors[1] if len(tensors) == 2 else None, config.norm_eps)

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)
