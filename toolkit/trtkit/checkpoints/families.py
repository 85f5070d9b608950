"""Families: what each architecture's config.json leaves unsaid, as data. Knows defaults and key names, reads no file.

The defaults are those of the Hugging Face configuration class of the family: a key that is absent from config.json
means this value there, so it must mean the same here.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """One architecture.

    keys            our name -> the key in config.json, where it differs from the usual one
    qkv_bias        True, False, or None when config.json says (`attention_bias`)
    qk_norm         q and k are normalised per head
    head_dim        when config.json is silent; None means hidden_size / heads
    sliding_window  when config.json is silent; None means none
    norms_add_one   the checkpoint stores w - 1 (Gemma)
    """

    name: str
    architecture: str
    keys: dict[str, str] = field(default_factory=dict)
    tie_word_embeddings: bool = False
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    hidden_act: str = "silu"
    qkv_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None
    sliding_window: int | None = None
    norms_add_one: bool = False
    is_moe: bool = False
    has_rope: bool = True


_GEMMA_ACT = {"hidden_act": "hidden_activation"}
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "norm_eps": "layer_norm_epsilon",
}

# model_type of config.json -> Family.
FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM"),
    "mistral": Family("mistral", "MistralForCausalLM", qkv_bias=False, sliding_window=4096),
    "mixtral": Family(
        "mixtral", "MixtralForCausalLM", qkv_bias=False, norm_eps=1e-5, rope_theta=1000000.0, is_moe=True
    ),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True, sliding_window=4096),
    "qwen2_moe": Family("qwen2_moe", "Qwen2MoeForCausalLM", qkv_bias=True, sliding_window=4096, is_moe=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", qk_norm=True, head_dim=128, sliding_window=4096),
    "qwen3_moe": Family("qwen3_moe", "Qwen3MoeForCausalLM", qk_norm=True, sliding_window=4096, is_moe=True),
    "gemma": Family(
        "gemma",
        "GemmaForCausalLM",
        keys=_GEMMA_ACT,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        head_dim=256,
        norms_add_one=True,
    ),
    "gemma2": Family(
        "gemma2",
        "Gemma2ForCausalLM",
        keys=_GEMMA_ACT,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        head_dim=256,
        sliding_window=4096,
        norms_add_one=True,
    ),
    "gemma3_text": Family(
        "gemma3",
        "Gemma3ForCausalLM",
        keys=_GEMMA_ACT,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        rope_theta=1000000.0,
        qk_norm=True,
        head_dim=256,
        sliding_window=4096,
        norms_add_one=True,
    ),
    "phi3": Family("phi3", "Phi3ForCausalLM", qkv_bias=False, norm_eps=1e-5),
    "gpt2": Family(
        "gpt2",
        "GPT2LMHeadModel",
        keys=_GPT2_KEYS,
        tie_word_embeddings=True,
        norm_eps=1e-5,
        hidden_act="gelu_new",
        qkv_bias=True,
        has_rope=False,
    ),
}
