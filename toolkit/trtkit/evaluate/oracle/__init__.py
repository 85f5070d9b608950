"""transformers on the original checkpoint: its answers, their record, and how far rounding may move them."""
