"""Makes the demo draft: the target writes lessons, a small Llama learns from them, the result is shipped."""
