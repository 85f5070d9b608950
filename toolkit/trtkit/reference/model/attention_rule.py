"""AttentionRule: what one layer's attention does besides softmax(Q K^T) V. Knows numbers, no tensors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionRule:
    """scale multiplies Q K^T.

    soft_cap    c of c * tanh(score / c), applied to scaled scores (Gemma 2); None applies nothing
    window      most recent tokens that a token sees, itself included (Mistral, Gemma 2 and 3); None sees all
    """

    scale: float
    soft_cap: float | None = None
    window: int | None = None
