"""Progress as an event. The library emits it, the command line draws it; the default listener is silent."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of one stage are finished; `unit` is a plural noun ("tensors", "bytes")."""

    stage: str
    done: int
    total: int
    unit: str


OnProgress = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """The default listener."""
