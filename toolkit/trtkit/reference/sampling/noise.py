"""The random number of one position of one sequence. Knows integers only, keeps no state."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on `seed` and on the token's index in its sequence, and on nothing else.

    Because nothing is consumed, a token is drawn alike whether it was decoded alone, verified as a draft, or asked for
    in a second request that continues the first. Two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014); the upper 53 bits become the float.
    """
    bits = _mix(_mix((seed + _GOLDEN) & _MASK) ^ (((position + 1) * _GOLDEN) & _MASK))
    return (bits >> 11) * 2.0**-53


def _mix(z: int) -> int:
    """SplitMix64's finaliser: every input bit moves about half of the output bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
