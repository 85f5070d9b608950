"""Logits become token ids. Knows no model and no cache."""
