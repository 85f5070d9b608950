"""A deployment's samples against the target's distribution, by an exact test that may end early."""
