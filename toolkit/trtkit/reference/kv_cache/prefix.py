"""How far two token sequences agree. Pure."""

from collections.abc import Sequence

_STRIDE = 256


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """Number of leading tokens, at most `limit`, that both sequences share.

    Whole strides are compared as slices, which runs at the speed of C; the one that differs is walked.
    Neither sequence may be shorter than `limit`.
    """
    start = 0
    while start < limit:
        end = min(start + _STRIDE, limit)
        if list(left[start:end]) != list(right[start:end]):
            return start + next(i for i in range(end - start) if left[start + i] != right[start + i])
        start = end
    return limit
