"""The draft while it learns: a Llama whose head has only the rows of its vocabulary. Knows tensors, no lessons."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from trtkit.demo.distillation.teacher import rotate, rotation

HIDDEN, INNER, HEAD_DIM, NUM_Q, NUM_KV = 576, 1536, 64, 9, 3
NORM_EPS, ROPE_BASE = 1e-5, 100_000.0
_MAX_LEN = 512


class Student(nn.Module):
    """Embedding (shared with the head), layers, norm.

    V' size of the draft's vocabulary, V of the target's. `place` is a token's row of the head, -1 where it has none.

    The embedding of the vocabulary learns; every other token keeps the target's row.
    """

    frozen: Tensor
    vocabulary: Tensor
    place: Tensor
    turn: Tensor

    def __init__(self, target_embedding: Tensor, vocabulary: Tensor, num_layers: int) -> None:
        """target_embedding [V, 576], vocabulary [V'] ids whose logits are computed."""
        super().__init__()
        self.register_buffer("frozen", target_embedding.to(torch.bfloat16), persistent=False)
        self.register_buffer("vocabulary", vocabulary)
        place = torch.full((len(target_embedding),), -1, dtype=torch.long)
        place[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("place", place, persistent=False)
        self.register_buffer("turn", rotation(ROPE_BASE, HEAD_DIM, _MAX_LEN), persistent=False)
        self.rows = nn.Parameter(target_embedding[vocabulary].float())
        self.layers = nn.ModuleList(StudentLayer() for _ in range(num_layers))
        self.norm = nn.Parameter(torch.ones(HIDDEN))

    def keep(self, indices: Iterable[int]) -> None:
        """Go on with some of the layers only."""
        self.layers = nn.ModuleList(self.layers[index] for index in indices)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, S]; returns the normalised states before the head [B, S, 576]."""
        place = self.place[token_ids]
        own = functional.embedding(place.clamp(min=0), self.rows)
        hidden = torch.where(place[..., None] >= 0, own, self.frozen[token_ids].float())
        turn = self.turn[: token_ids.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, turn)
        return functional.rms_norm(hidden, (HIDDEN,), self.norm, NORM_EPS)

    def logits(self, states: Tensor) -> Tensor:
        """states [..., 576]; returns the logits of the vocabulary [..., V'], in its order."""
        return functional.linear(states, self.rows)


class StudentLayer(nn.Module):
    """One Llama layer, its projections fused."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.Parameter(torch.ones(HIDDEN))
        self.post_norm = nn.Parameter(torch.ones(HIDDEN))
        self.qkv = nn.Linear(HIDDEN, (NUM_Q + 2 * NUM_KV) * HEAD_DIM, bias=False)
        self.dense = nn.Linear(NUM_Q * HEAD_DIM, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden: Tensor, turn: Tensor) -> Tensor:
        """hidden [B, S, 576] and the rotation of its S positions [S, 2, 64]."""
        num_rows, num_tokens = hidden.shape[:2]
        qkv = self.qkv(functional.rms_norm(hidden, (HIDDEN,), self.input_norm, NORM_EPS))
        heads = qkv.view(num_rows, num_tokens, -1, HEAD_DIM).transpose(1, 2)
        query, key, value = torch.split(heads, [NUM_Q, NUM_KV, NUM_KV], 1)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, turn), rotate(key, turn), value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.dense(mixed.transpose(1, 2).reshape(num_rows, num_tokens, -1))
        gate, up = self.gate_up(functional.rms_norm(hidden, (HIDDEN,), self.post_norm, NORM_EPS)).chunk(2, -1)
        result: Tensor = hidden + self.down(functional.silu(gate) * up)
        return result


_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "dense": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "input_norm": ("input_layernorm",),
    "post_norm": ("post_attention_layernorm",),
}
_ROWS = {"qkv": [NUM_Q * HEAD_DIM, NUM_KV * HEAD_DIM, NUM_KV * HEAD_DIM], "gate_up": [INNER, INNER]}


def adopt_layer(layer: nn.Module, weights: Mapping[str, Tensor], index: int) -> None:
    """Start a layer as the layer `index` of a Hugging Face Llama of the same shape."""
    for name, parts in _FUSED.items():
        joined = torch.cat([weights[f"model.layers.{index}.{part}.weight"] for part in parts])
        parameter = getattr(layer, name)
        with torch.no_grad():
            (parameter if isinstance(parameter, nn.Parameter) else parameter.weight).copy_(joined)


def huggingface_layers(student: Student) -> dict[str, Tensor]:
    """All weights but the embedding, under the names of a Hugging Face Llama, bfloat16."""
    tensors = {"model.norm.weight": student.norm}
    for index, layer in enumerate(student.layers):
        for name, parts in _FUSED.items():
            parameter = getattr(layer, name)
            fused = parameter if isinstance(parameter, nn.Parameter) else parameter.weight
            pieces = fused.split(_ROWS[name]) if name in _ROWS else [fused]
            tensors |= {f"model.layers.{index}.{p}.weight": t for p, t in zip(parts, pieces, strict=True)}
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
