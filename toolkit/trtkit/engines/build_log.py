"""Progress out of the log of trtllm-build. Knows its sentences, not the process."""

import re
from collections.abc import Callable

# What every rank says once, in this order: network made, engine made, engine written.
_MILESTONES = (
    re.compile(r"Total time of constructing network"),
    re.compile(r"Engine generation completed|Total time of building .*[Nn]etwork"),
    re.compile(r"Engine serialized|Serializing engine to"),
)
STEPS_PER_RANK = len(_MILESTONES)


def log_reader(num_ranks: int, on_step: Callable[[int, int], None]) -> Callable[[str], None]:
    """A function to call with every line; it calls on_step(done, total) when a rank passes a milestone.

    A milestone is counted at most once per rank, since releases repeat some sentences.
    """
    counts = [0] * STEPS_PER_RANK

    def read(line: str) -> None:
        for index, milestone in enumerate(_MILESTONES):
            if milestone.search(line) and counts[index] < num_ranks:
                counts[index] += 1
                on_step(sum(counts), num_ranks * STEPS_PER_RANK)
                return

    return read
