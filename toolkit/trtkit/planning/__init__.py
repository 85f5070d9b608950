"""Predicts memory, speed and the best draft length from shapes alone. Opens no weights, runs no model."""
