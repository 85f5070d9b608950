"""Who computes what in the next step. Ints and lists only."""
