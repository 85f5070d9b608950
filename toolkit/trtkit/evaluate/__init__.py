"""Does a deployment say what its checkpoint says, and how fast? Oracle, parity, bench and their reports."""
