"""How many sequences fit, and which memory fractions give each model its share. Knows bytes, no models.

The runtime takes its KV fraction of what is free *after* the engine's weights and buffers are loaded, so on a shared
GPU the second model's fraction is of what the first one left.
"""

from dataclasses import dataclass

# CUDA context, cuBLAS and NCCL workspaces of one process; measured values lie between 0.5 and 1.5 GB.
RUNTIME_BYTES = 1_000_000_000
# The runtime rounds blocks and needs some room for fragmentation; a fraction of 1.0 is rejected.
_USABLE_PERCENT = 95


@dataclass(frozen=True)
class ModelShare:
    """One model's bytes on the fullest GPU: weights, buffers (activations and logits), KV of one sequence."""

    weight_bytes: int
    buffer_bytes: int
    kv_bytes_per_sequence: int
    tokens_per_sequence: int


@dataclass(frozen=True)
class Fit:
    """The solution for one GPU.

    sequences of every model at once; shortfall_bytes is what lacks for one sequence, 0 when one fits. fractions and
    max_tokens (max_tokens_in_paged_kv_cache) are in load order.
    """

    sequences: int
    shortfall_bytes: int
    fractions: tuple[float, ...]
    max_tokens: tuple[int, ...]


def fit(memory_bytes: int, shares: tuple[ModelShare, ...]) -> Fit:
    """Give every model the same number of sequences, as many as fit. `shares` are in load order."""
    fixed = sum(share.weight_bytes + share.buffer_bytes + RUNTIME_BYTES for share in shares)
    per_sequence = sum(share.kv_bytes_per_sequence for share in shares)
    room = (memory_bytes - fixed) * _USABLE_PERCENT // 100
    if room < per_sequence:
        return Fit(0, max(1, per_sequence - room), (), ())
    sequences = room // per_sequence
    return Fit(
        sequences=sequences,
        shortfall_bytes=0,
        fractions=_fractions(memory_bytes, shares, sequences),
        max_tokens=tuple(sequences * share.tokens_per_sequence for share in shares),
    )


def _fractions(memory_bytes: int, shares: tuple[ModelShare, ...], sequences: int) -> tuple[float, ...]:
    """The fraction of each model, of what is free when it has loaded; rounded up so that all sequences fit."""
    free, fractions = memory_bytes, []
    for share in shares:
        free -= RUNTIME_BYTES + share.weight_bytes + share.buffer_bytes
        wanted = sequences * share.kv_bytes_per_sequence
        thousandths = -(-wanted * 1000 // free)
        fractions.append(thousandths / 1000)
        free -= -(-free * thousandths // 1000)
    return tuple(fractions)
