"""The target, answering many prompts of one length at a time. Knows its weights and their cache, no lessons."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional


class Teacher:
    """A Llama in bfloat16 for large batches: every document has the same length, so nothing is masked but the future.

    B documents, S new tokens, T tokens so far, V vocab_size, H hidden_size, K key heads, G queries per key head,
    D head_dim.
    """

    def __init__(self, checkpoint: Path, batch_size: int, capacity: int) -> None:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        weights = load_file(checkpoint / "model.safetensors")
        self._num_kv, self._dim, self._eps = config["num_key_value_heads"], config["head_dim"], config["rms_norm_eps"]
        self._num_q = config["num_attention_heads"]
        self.embedding = weights["model.embed_tokens.weight"]
        self._final_norm = weights["model.norm.weight"]
        self._layers = [_Layer(weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        shape = (2, len(self._layers), batch_size, self._num_kv, capacity, self._dim)
        self._cache = torch.zeros(shape, dtype=torch.bfloat16)
        self.rotation = rotation(config["rope_parameters"]["rope_theta"], self._dim, capacity)
        self._length = 0

    def start(self, prompts: Tensor) -> Tensor:
        """Forget everything, read prompts [B, T] and return the logits after each [B, V]."""
        self._length = 0
        return self.read(prompts)

    def keep(self, rows: Tensor) -> None:
        """Go on with some documents only; rows [B'] are indices into the present ones."""
        for kind in self._cache:
            for layer in kind:
                layer[: len(rows), :, : self._length] = layer[rows, :, : self._length]

    @torch.inference_mode()
    def read(self, token_ids: Tensor) -> Tensor:
        """Append token_ids [B, S] and return the logits after the last [B, V] float32."""
        hidden = functional.embedding(token_ids, self.embedding)
        turn = self.rotation[self._length : self._length + token_ids.shape[1]]
        for index, layer in enumerate(self._layers):
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.input_norm, self._eps)
            hidden = hidden + functional.linear(
                self._attend(index, functional.linear(normed, layer.qkv), turn), layer.dense
            )
            normed = functional.rms_norm(hidden, hidden.shape[-1:], layer.post_norm, self._eps)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        self._length += token_ids.shape[1]
        last = functional.rms_norm(hidden[:, -1], hidden.shape[-1:], self._final_norm, self._eps)
        return functional.linear(last, self.embedding).float()

    def _attend(self, index: int, qkv: Tensor, turn: Tensor) -> Tensor:
        num_rows, num_new = qkv.shape[:2]
        heads = qkv.view(num_rows, num_new, -1, self._dim).transpose(1, 2)
        query, key, value = torch.split(heads, [self._num_q, self._num_kv, self._num_kv], 1)
        end = self._length + num_new
        keys, values = (kind[index, :num_rows, :, :end] for kind in self._cache)
        keys[:, :, self._length :], values[:, :, self._length :] = rotate(key, turn), value
        query = rotate(query, turn)
        if num_new == 1:
            query = query.view(num_rows, self._num_kv, -1, self._dim)
            mixed = functional.scaled_dot_product_attention(query, keys, values)
        else:
            mixed = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        mixed = mixed.reshape(num_rows, self._num_q, num_new, self._dim)
        return mixed.transpose(1, 2).reshape(num_rows, num_new, -1)


class _Layer:
    """The weights of one layer, fused."""

    def __init__(self, weights: dict[str, Tensor], prefix: str) -> None:
        def take(*names: str) -> Tensor:
            return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

        self.input_norm, self.post_norm = take("input_layernorm"), take("post_attention_layernorm")
        self.qkv = take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.dense, self.down = take("self_attn.o_proj"), take("mlp.down_proj")
        self.gate_up = take("mlp.gate_proj", "mlp.up_proj")


def rotation(base: float, head_dim: int, max_len: int) -> Tensor:
    """cos and sin of every angle, repeated for both halves of a head: [2, T, D] float32, indexed as [T, 2, D]."""
    frequencies = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(max_len).float(), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()], 1)


def rotate(heads: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions in float32, dimension i with i + D/2: heads [..., S, D], turn [S, 2, D]."""
    first, second = heads.float().chunk(2, -1)
    turned = heads * turn[:, 0] + torch.cat([-second, first], -1) * turn[:, 1]
    return turned.to(heads.dtype)
