"""The demo target as a Hugging Face checkpoint. Knows GGUF and transformers, not where the file came from."""

from pathlib import Path


def write_target(gguf: Path, out: Path) -> None:
    """Dequantise a Llama GGUF into bfloat16 safetensors with config, generation config and tokenizer in `out`.

    transformers reads the GGUF but refuses to save a model that it marks as quantised, so the weights move into a
    fresh model of the same configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings = source.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "dtype"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(source.state_dict())
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
