"""How fast each pair of a head turns, for every kind of rope scaling. Knows formulas, no heads and no tokens.

Sources: transformers.modeling_rope_utils, and the papers it names (NTK-aware scaling, YaRN, LongRoPE, Llama 3.1).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trtkit.reference.model.config import RopeConfig


class Frequencies(NamedTuple):
    """angle = position * per_pair; queries and keys are both multiplied by `factor` as they turn.

    T positions, R rotated elements of a head.
        per_pair  [R / 2], or [T, R / 2] where it depends on the position; float32
    """

    per_pair: Tensor
    factor: float


def frequencies_of(rope: RopeConfig, num_positions: int) -> Frequencies:
    """The frequencies for positions below num_positions."""
    return _KINDS[rope.kind](rope, num_positions)


def _plain(rope: RopeConfig, _: int) -> Frequencies:
    """base^(-2i / R)"""
    return Frequencies(1.0 / _wavelengths(rope.base, rope.dim), 1.0)


def _linear(rope: RopeConfig, num_positions: int) -> Frequencies:
    return Frequencies(_plain(rope, num_positions).per_pair / rope.scaling["factor"], 1.0)


def _dynamic(rope: RopeConfig, num_positions: int) -> Frequencies:
    """NTK-aware: the base grows with the length of the text beyond max_position_embeddings.

    A token's base is the one for the text that ends with it, which is what decoding token by token gives; a whole
    prompt longer than max_position_embeddings has one base in transformers.
    """
    factor, most = rope.scaling["factor"], rope.max_positions
    lengths = torch.arange(1, num_positions + 1).float().clamp(min=most)
    bases = rope.base * (factor * lengths / most - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    return Frequencies(1.0 / _wavelengths(bases[:, None], rope.dim), 1.0)


def _llama3(rope: RopeConfig, num_positions: int) -> Frequencies:
    """Divide slow frequencies by the factor, keep fast ones, blend linearly between the two bounds.

    A frequency is slow when its wavelength exceeds original_max_position_embeddings / low_freq_factor, fast when below
    that / high_freq_factor.
    """
    scaling, fast = rope.scaling, _plain(rope, num_positions).per_pair
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * fast / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return Frequencies(torch.lerp(fast / scaling["factor"], fast, blend), 1.0)


def _yarn(rope: RopeConfig, num_positions: int) -> Frequencies:
    """Pairs that turn less than beta_slow times in the original context are divided by the factor, those that turn more
    than beta_fast times stay, and the ramp between is linear in the pair's number."""
    scaling, dim = rope.scaling, rope.dim
    original = scaling.get("original_max_position_embeddings") or rope.max_positions
    factor = scaling["factor"]

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope.base))

    low = pair_that_turns(scaling.get("beta_fast") or 32)
    high = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / ((high - low) or 0.001)).clamp(0, 1)
    fast = _plain(rope, num_positions).per_pair
    return Frequencies(torch.lerp(fast, fast / factor, ramp), _yarn_factor(scaling, factor))


def _yarn_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """The attention factor: given, or 0.1 m ln(factor) + 1, as a ratio where config.json has two m."""

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)


def _longrope(rope: RopeConfig, num_positions: int) -> Frequencies:
    """One factor per pair: the short list while a text stays within the original context, the long one beyond."""
    scaling = rope.scaling
    original = scaling.get("original_max_position_embeddings") or rope.max_positions
    factors = scaling["long_factor" if num_positions > original else "short_factor"]
    per_pair = 1.0 / (torch.tensor(factors) * _wavelengths(rope.base, rope.dim))
    given, growth = scaling.get("attention_factor"), scaling.get("factor") or rope.max_positions / original
    if given is not None:
        return Frequencies(per_pair, float(given))
    return Frequencies(per_pair, math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0)


def _wavelengths(base: float | Tensor, dim: int) -> Tensor:
    """base^(2i / R). [..., R / 2] float32"""
    powers: Tensor = base ** (torch.arange(0, dim, 2).float() / dim)
    return powers


_KINDS: dict[str, Callable[[RopeConfig, int], Frequencies]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
