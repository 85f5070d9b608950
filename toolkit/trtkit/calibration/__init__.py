"""Calibration: one streaming pass over texts that measures keys, values and linear inputs, and what follows from it."""
