"""The decoder: checkpoint files become tensors, tokens become logits. Knows no requests."""
