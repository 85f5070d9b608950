"""How many sequences fit, and which memory fractions give each model its share. Knows bytes, no models.

The runtime takes its KV fraction of what is free *after* the engine's weights and buffers are loaded, so on a shared
GPU the second model's fraction is of what the first one left. A server loads its models in no certain order: each
fraction is the largest that any order asks for, and the token limit keeps the model that comes first to its own share
(the runtime takes the smaller of the two).
"""

from dataclasses import dataclass
from itertools import permutations

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
    """sequences is how many of the longest sequences fit; 0 comes with shortfall_bytes.

    fractions and max_tokens are per model, in the order of the shares, and belong together: what
    kv_cache_free_gpu_mem_fraction and max_tokens_in_paged_kv_cache are to be.
    """

    sequences: int
    shortfall_bytes: int
    fractions: tuple[float, ...]
    max_tokens: tuple[int, ...]


def fit(memory_bytes: int, shares: tuple[ModelShare, ...]) -> Fit:
    """Give every model the same number of sequences, as many as fit."""
    fixed = sum(share.weight_bytes + share.buffer_bytes + RUNTIME_BYTES for share in shares)
    per_sequence = sum(share.kv_bytes_per_sequence for share in shares)
    room = (memory_bytes - fixed) * _USABLE_PERCENT // 100
    if room < per_sequence:
        return Fit(0, max(1, per_sequence - room), (), ())
    sequences = room // per_sequence
    in_order = [_fractions(memory_bytes, shares, order, sequences) for order in permutations(range(len(shares)))]
    return Fit(
        sequences=sequences,
        shortfall_bytes=0,
        fractions=tuple(max(fractions[number] for fractions in in_order) for number in range(len(shares))),
        max_tokens=tuple(sequences * share.tokens_per_sequence for share in shares),
    )


def fit_apart(memory_bytes: int, shares: tuple[ModelShare, ...]) -> Fit:
    """The same for models on GPUs of their own: a sequence needs room in every one of them."""
    alone = [fit(memory_bytes, (share,)) for share in shares]
    sequences = min(solution.sequences for solution in alone)
    if not sequences:
        return Fit(0, max(solution.shortfall_bytes for solution in alone), (), ())
    return Fit(
        sequences=sequences,
        shortfall_bytes=0,
        fractions=tuple(_fractions(memory_bytes, (share,), (0,), sequences)[0] for share in shares),
        max_tokens=tuple(sequences * share.tokens_per_sequence for share in shares),
    )


def _fractions(
    memory_bytes: int, shares: tuple[ModelShare, ...], order: tuple[int, ...], sequences: int
) -> dict[int, float]:
    """Number of a model -> its fraction of what is free when it has loaded; rounded up so that all sequences fit."""
    free, fractions = memory_bytes, {}
    for number in order:
        share = shares[number]
        free -= RUNTIME_BYTES + share.weight_bytes + share.buffer_bytes
        wanted = sequences * share.kv_bytes_per_sequence
        fractions[number] = -(-wanted * 1000 // free) / 1000
        free -= wanted
    return fractions
