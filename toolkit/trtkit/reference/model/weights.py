"""The weights of a decoder as it runs them: fused, packed, as functions. Knows no files and runs nothing."""

from dataclasses import dataclass

from torch import Tensor

from trtkit.reference.kv_cache.formats import Scale
from trtkit.reference.model.linear import Linear
from trtkit.reference.model.mlp import Mlp
from trtkit.reference.model.norm import Norm


@dataclass(frozen=True)
class Layer:
    """The weights of one layer.

    qkv answers [Q ; K ; V]. head_norm [Q + K, D] scales every query and key head after normalising it. attention_norm
    and mlp_norm normalise what attention and MLP add to the stream; input_norm and post_norm what they read of it.
    rope is the number of the rotation that turns its heads.
    """

    input_norm: Norm
    qkv: Linear
    head_norm: Tensor | None
    rope: int | None
    kv_scale: Scale | None
    dense: Linear
    attention_norm: Norm | None
    post_norm: Norm
    mlp: Mlp
    mlp_norm: Norm | None


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder.

    V vocab_size, E hidden_size, V' rows of the head: all, or those of a draft's vocabulary, T positions.
        embedding        [V, E]
        embedding_scale  [] in the model's dtype, multiplies every embedding, or None
        positions        [T, E] learned ones, or None
        vocabulary       [V'] the token id of every row of the head; None when they are all tokens in order
        rotations        [T, 1, D / 2] complex64 each
    """

    embedding: Tensor
    embedding_scale: Tensor | None
    positions: Tensor | None
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Linear
    vocabulary: Tensor | None
    rotations: tuple[Tensor, ...]

    @property
    def kv_scales(self) -> tuple[Scale | None, ...]:
        """The scales of a quantised cache, layer by layer, None where the checkpoint has none."""
        return tuple(layer.kv_scale for layer in self.layers)
