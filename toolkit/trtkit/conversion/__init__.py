"""Hugging Face checkpoints become TensorRT-LLM checkpoints: rules as data, one pass, one sequential write per rank."""
