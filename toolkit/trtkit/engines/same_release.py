"""Whether two versions name one release: one as the YAML writes it, one as a package calls itself. Knows no records."""

from trtkit.engines.release import find_release


def same_release(one: str, other: str) -> bool:
    """ "1.2" is 1.2.0, a container's fourth number ("1.0.3.2510") and a local suffix ("1.2.1+cu131") do not count."""
    found = find_release(one)
    return one == other or (found is not None and found is find_release(other))
