"""How many ranks are built at a time: bounded by ranks, GPUs and host memory."""

import pytest
from trtkit.engines.workers import HostRoom, bytes_per_worker, num_workers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("world_size", "rank_gib", "gpus", "free_gib", "expected"),
    [
        (4, 17, 4, 1024, 4),  # room for all
        (4, 17, 2, 1024, 2),  # the builder gives every worker its GPU
        (4, 17, 4, 120, 2),  # 3 x 17 + 4 GiB each
        (4, 17, 4, 16, 1),  # never fewer than one: it may still work, and says so when it does not
        (1, 1, 8, 1024, 1),
        (2, 1, 0, 1024, 1),
    ],
)
def test_workers_fit(world_size: int, rank_gib: int, gpus: int, free_gib: int, expected: int) -> None:
    assert num_workers(world_size, rank_gib * GIB, HostRoom(gpus, free_gib * GIB)) == expected


def test_a_worker_holds_the_weights_more_than_once() -> None:
    assert bytes_per_worker(10 * GIB) == 34 * GIB
