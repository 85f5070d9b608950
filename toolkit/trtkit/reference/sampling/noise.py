"""The random numbers of one position of one sequence. Knows integers only, keeps no state."""

from enum import IntEnum

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a random number is for; numbers for different purposes are independent of each other."""

    CHOOSE = 0
    ACCEPT = 1
    RECOVER = 2


def uniform(seed: int, position: int, purpose: Purpose = Purpose.CHOOSE) -> float:
    """A number in [0, 1) that depends on `seed`, on the token's index in its sequence, on its purpose, on nothing else.

    Because nothing is consumed, a token is drawn alike whether it was decoded alone, verified as a draft, or asked for
    in a second request that continues the first. Two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014); the upper 53 bits become the float.
    """
    key = _mix((seed + _GOLDEN) & _MASK)
    if purpose:
        key = _mix((key + purpose) & _MASK)
    bits = _mix(key ^ (((position + 1) * _GOLDEN) & _MASK))
    return (bits >> 11) * 2.0**-53


def derived_seed(seed: int, index: int) -> int:
    """The seed of the index-th of several sequences that one request asks for; the first keeps the request's own."""
    return _mix((seed + index * _GOLDEN) & _MASK) if index else seed


def _mix(z: int) -> int:
    """SplitMix64's finaliser: every input bit moves about half of the output bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
