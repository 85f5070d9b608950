"""One layer's tensors become a Layer. Knows the names of the format and what is fused, no files and no arithmetic.

mlp.fc is the activated projection and mlp.gate the other one; fused forms stack them as [gate ; fc].
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trtkit.reference.kv_cache.formats import Scale
from trtkit.reference.model.config import LayerConfig, ModelConfig
from trtkit.reference.model.experts import Experts, SharedExpert
from trtkit.reference.model.joins import Cut, rows_joiner
from trtkit.reference.model.linear import Linear, can_pack, make_linear
from trtkit.reference.model.linear_weight import LinearWeight, joined_by_rows
from trtkit.reference.model.mlp import Mlp, make_mlp
from trtkit.reference.model.norm import Norm, make_norm
from trtkit.reference.model.quantized_linear import make_layer, side_by_side
from trtkit.reference.model.rotary import pairs_as_neighbours
from trtkit.reference.model.shards import Shape, Shards
from trtkit.reference.model.weights import Layer

Move = Callable[[Tensor], Tensor]


class LayerLoader:
    """Makes layers; `move` brings a tensor to the model's dtype and device.

    E hidden_size, I intermediate_size, Q and K rows of all query and key heads.
    """

    def __init__(self, shards: Shards, config: ModelConfig, move: Move, *, packed: bool) -> None:
        self._shards = shards
        self._config = config
        self._move = move
        self._packed = packed

    def load(self, stage: int, index: int, layer: LayerConfig) -> Layer:
        """The layer with number `index` in its pipeline stage."""
        return _LayerReader(self._shards, self._config, self._move, (stage, index), packed=self._packed).read(layer)


class _LayerReader:
    """Reads one layer."""

    def __init__(
        self, shards: Shards, config: ModelConfig, move: Move, place: tuple[int, int], *, packed: bool
    ) -> None:
        self._shards = shards
        self._config = config
        self._move = move
        self._packed = packed
        self._stage, index = place
        self._prefix = f"transformer.layers.{index}."

    def read(self, layer: LayerConfig) -> Layer:
        config = self._config
        num_q_rows = config.num_q_heads * config.head_dim
        has_four_norms = config.has_branch_norms
        return Layer(
            input_norm=self._norm("input_layernorm"),
            qkv=self._qkv(),
            head_norm=self._head_norm() if config.family.has_head_norms else None,
            rope=layer.rope,
            kv_scale=self._kv_scale(),
            dense=self._linear("attention.dense", (config.hidden_size, num_q_rows), "columns", config.has_dense_bias),
            attention_norm=self._norm("post_layernorm") if has_four_norms else None,
            post_norm=self._norm("pre_feedforward_layernorm" if has_four_norms else "post_layernorm"),
            mlp=self._experts() if layer.is_sparse else self._mlp(),
            mlp_norm=self._norm("post_feedforward_layernorm") if has_four_norms else None,
        )

    def _norm(self, name: str) -> Norm:
        family, shape = self._config.family, (self._config.hidden_size,)
        weight = self._move(self._take(f"{name}.weight", shape))
        bias = self._move(self._take(f"{name}.bias", shape)) if family.norm == "layer" else None
        return make_norm(family.norm, weight, bias, self._config.norm_eps)

    def _qkv(self) -> Linear:
        config = self._config
        num_rows = (config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim
        (weight,) = self._weights("attention.qkv", (num_rows, config.hidden_size), "qkv")
        bias = self._take("attention.qkv.bias", (num_rows,), "qkv") if config.has_qkv_bias else None
        if config.ropes:
            weight = weight.with_rows(self._pairs_as_neighbours)
            bias = None if bias is None else self._pairs_as_neighbours(bias)
        return self._make([weight], bias)

    def _pairs_as_neighbours(self, qkv: Tensor) -> Tensor:
        """Reorder the query and key rows; the value rows stay."""
        config = self._config
        num_rotated = (config.num_q_heads + config.num_kv_heads) * config.head_dim
        turned = pairs_as_neighbours(qkv[:num_rotated], config.head_dim, config.ropes[0].dim)
        return torch.cat([turned, qkv[num_rotated:]])

    def _head_norm(self) -> Tensor:
        """One row per query and key head, in the order of the reordered elements."""
        config = self._config
        norms = [self._take(f"attention.{which}_layernorm.weight", (config.head_dim,)) for which in "qk"]
        query, key = (self._move(pairs_as_neighbours(norm, config.head_dim, config.ropes[0].dim)) for norm in norms)
        return torch.cat([query.expand(config.num_q_heads, -1), key.expand(config.num_kv_heads, -1)])

    def _kv_scale(self) -> Scale | None:
        """The scales of a quantised cache; their reciprocals, which older releases need too, say nothing new."""
        stem = f"{self._prefix}attention"
        names = [f"{stem}.{part}_cache_scaling_factor" for part in ("kv", "k", "v")]
        held = {
            name: float(self._shards.take(name, (1,), self._stage)) for name in names if self._shards.files.has(name)
        }
        if self._shards.files.has(f"{stem}.kv_cache_rcp_scaling_factor"):
            self._shards.take(f"{stem}.kv_cache_rcp_scaling_factor", (1,), self._stage)
        both, key, value = (held.get(name) for name in names)
        key, value = key or both, value or both
        return None if key is None or value is None else Scale(key, value)

    def _mlp(self) -> Mlp:
        config = self._config
        hidden, inner, has_bias = config.hidden_size, config.intermediate_size, config.has_mlp_bias
        down = self._linear("mlp.proj", (hidden, inner), "columns", has_bias)
        if not config.family.is_gated:
            up = self._linear("mlp.fc", (inner, hidden), "rows", has_bias)
        elif config.family.is_fused:
            (weight,) = self._weights("mlp.fc", (2 * inner, hidden), "halves")
            up = self._make([weight.with_rows(_swap_halves)], None)
        else:
            up = self._fc_and_gate(hidden, inner)
        return make_mlp(up, down, config.activation, is_gated=config.family.is_gated)

    def _fc_and_gate(self, hidden: int, inner: int) -> Linear:
        """One layer for both, where their inputs are rounded alike."""
        weights = [self._weights(f"mlp.{name}", (inner, hidden), "rows")[0] for name in ("fc", "gate")]
        biases = [
            self._take(f"mlp.{name}.bias", (inner,), "rows") for name in ("fc", "gate") if self._config.has_mlp_bias
        ]
        both = joined_by_rows(weights, rows_joiner("rows", self._config))
        if both is not None:
            return self._make([both], torch.cat(biases) if biases else None)
        return side_by_side([self._make([w], biases[i] if biases else None) for i, w in enumerate(weights)])

    def _experts(self) -> Mlp:
        config, moe = self._config, self._config.moe
        assert moe is not None, "a dense model has no sparse layer"
        hidden, inner = config.hidden_size, moe.intermediate_size
        ups = self._shards.experts(f"{self._prefix}mlp.fc", (2 * inner, hidden), self._stage, "halves")
        downs = self._shards.experts(f"{self._prefix}mlp.proj", (hidden, inner), self._stage, "columns")
        router = self._take("mlp.router.weight", (moe.num_experts, hidden)).float()
        packed = self._packed and can_pack(torch.float32, router.device)
        return Experts(
            make_linear(router, None, packed=packed),
            [self._gated_mlp(up, down) for up, down in zip(ups, downs, strict=True)],
            top_k=moe.top_k,
            normalizes=moe.normalizes,
            shared=self._shared_expert(moe.shared_size) if moe.shared_size else None,
        )

    def _shared_expert(self, inner: int) -> SharedExpert:
        hidden = self._config.hidden_size
        up = self._weights("mlp.shared_expert.fc", (2 * inner, hidden), "halves")
        down = self._weights("mlp.shared_expert.proj", (hidden, inner), "columns")
        gate = self._take("mlp.shared_expert_gate.weight", (1, hidden))
        return SharedExpert(self._gated_mlp(up, down), gate[0].to(self._move(gate).device, torch.float32))

    def _gated_mlp(self, up: list[LinearWeight], down: list[LinearWeight]) -> Mlp:
        ordered = [weight.with_rows(_swap_halves) for weight in up]
        return make_mlp(self._make(ordered, None), self._make(down, None), self._config.activation, is_gated=True)

    def _linear(self, name: str, shape: Shape, cut: Cut, has_bias: bool) -> Linear:
        """A layer whose bias is cut like its rows, and whole on every rank when its columns are cut."""
        weights = self._weights(name, shape, cut)
        bias_cut: Cut = "whole" if cut == "columns" else cut
        return self._make(weights, self._take(f"{name}.bias", shape[:1], bias_cut) if has_bias else None)

    def _weights(self, name: str, shape: Shape, cut: Cut) -> list[LinearWeight]:
        return self._shards.linear(self._prefix + name, shape, self._stage, cut)

    def _take(self, name: str, shape: Shape, cut: Cut = "whole") -> Tensor:
        return self._shards.take(self._prefix + name, shape, self._stage, cut)

    def _make(self, weights: list[LinearWeight], bias: Tensor | None) -> Linear:
        return make_layer(weights, None if bias is None else self._move(bias), packed=self._packed)


def _swap_halves(rows: Tensor) -> Tensor:
    """[gate ; fc] -> [fc ; gate]"""
    gate, fc = rows.chunk(2)
    return torch.cat([fc, gate])
