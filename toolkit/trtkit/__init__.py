"""trtkit: two Hugging Face checkpoints become a verified Triton deployment of TensorRT-LLM."""

__version__ = "0.1.0"
