"""GGUF files of tiny Llamas, for tests. Knows GGUF's names and orders, nothing of conversion."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_gguf(path: Path, config: dict[str, Any], values: dict[str, Any], *, quantized: bool = False) -> None:
    """A GGUF file of a tiny Llama, with q and k in GGUF's own order of rotary pairs; float32, or matrices in Q8_0."""
    import gguf

    def add(name: str, tensor: NDArray[np.float32]) -> None:
        if quantized and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in values.items():
        module = name.removesuffix(".weight")
        if module in names:
            add(f"{names[module]}.weight", tensor)
            continue
        _, _, layer, part = module.split(".", 3)
        target = parts[part]
        if target in heads:
            rows, columns = tensor.shape
            split = tensor.reshape(heads[target], 2, rows // heads[target] // 2, columns)
            tensor = np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows, columns))
        add(f"blk.{layer}.{target}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
