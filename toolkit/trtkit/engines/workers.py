"""How many ranks trtllm-build may build at a time. Knows sizes, starts nothing."""

from dataclasses import dataclass

# A worker holds the rank's weights, TensorRT's copy of them, and the engine that it serialises.
_COPIES_PER_WORKER = 3
_PER_WORKER_BYTES = 4 << 30


@dataclass(frozen=True)
class HostRoom:
    """What the building machine has: GPUs, and host memory that is free now."""

    num_gpus: int
    free_bytes: int


def bytes_per_worker(rank_bytes: int) -> int:
    """Host memory one worker needs at its peak, for a rank file of `rank_bytes`; CUDA and libraries included."""
    return _COPIES_PER_WORKER * rank_bytes + _PER_WORKER_BYTES


def num_workers(world_size: int, rank_bytes: int, room: HostRoom) -> int:
    """One worker per rank, at most one per GPU (the builder caps that too), and no more than the memory holds."""
    fitting = room.free_bytes // bytes_per_worker(rank_bytes)
    return max(1, min(world_size, max(1, room.num_gpus), fitting))
