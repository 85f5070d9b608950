"""Executes a TensorRT-LLM checkpoint with PyTorch. Knows the checkpoint format, not the Hugging Face one."""
