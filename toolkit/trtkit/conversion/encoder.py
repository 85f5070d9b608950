"""Encoder: what turns a target's values into tensors of a rank file. Knows the contract, no numbers."""

from collections.abc import Sequence
from typing import Protocol

from trtkit.conversion.layout import Target
from trtkit.conversion.rank_file import RankFile, TensorHeader

Sinks = Sequence[RankFile | None]
"""The files of the tensor ranks of one stage, by rank; None where an earlier run finished that file."""


class Encoder(Protocol):
    """Announces first what it will append, since a file's header is written before its data."""

    def headers(self, target: Target) -> list[TensorHeader]:
        """What `write` appends for `target`, in order."""
        ...

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append to every sink; targets[r] is rank r's part of the same tensor."""
        ...
