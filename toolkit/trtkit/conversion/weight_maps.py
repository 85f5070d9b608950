"""The weight maps, one per family, as data. Knows names and layouts of both formats, cuts and converts nothing.

Layouts (TensorRT-LLM's own converters): qkv stacks q, k, v; mlp.fc is the *gate* projection and mlp.gate the *up*
projection; the fused forms (experts, Phi-3, shared expert) stack [up; gate]; linear weights are [outputs, inputs].
"""

from trtkit.conversion.rules import Cut, Part, Rule, Stage, WeightMap, When

_HF = "model.layers.{i}."
_H = "h.{i}."
_LAYER = "transformer.layers.{i}."


def _rows(source: str, size: str, after: str = "") -> Part:
    return Part(source, size, "rows", after)


def _whole(source: str, size: str) -> Part:
    return Part(source, size, "whole")


def _norm(target: str, source: str, size: str = "hidden", stage: Stage = "layer", when: When = "always") -> Rule:
    return Rule(f"{target}.weight", (_whole(f"{source}.weight", size),), "", "norm", stage, when)


def _layer_norm(target: str, source: str, stage: Stage = "layer") -> tuple[Rule, Rule]:
    """A LayerNorm has a bias too."""
    return (
        _norm(target, source, stage=stage),
        Rule(f"{target}.bias", (_whole(f"{source}.bias", "hidden"),), "", "plain", stage),
    )


def _embedding(source: str) -> Rule:
    part = Part(source, "vocab", "embedding")
    return Rule("transformer.vocab_embedding.weight", (part,), "hidden", "embedding", "first")


def _head(embedding: str) -> tuple[Rule, Rule]:
    """A tied head is a copy of the embedding; any lm_head.weight in the source is then unused, as in transformers."""
    tied, own = Part(embedding, "vocab", "vocab"), Part("lm_head.weight", "vocab", "vocab")
    return (
        Rule("lm_head.weight", (tied,), "hidden", "head", "last", "tied"),
        Rule("lm_head.weight", (own,), "hidden", "head", "last", "untied"),
    )


_FIRST = (_embedding("model.embed_tokens.weight"),)
_LAST = (_norm("transformer.ln_f", "model.norm", stage="last"), *_head("model.embed_tokens.weight"))


def _qkv(end: str) -> tuple[Part, ...]:
    return (
        _rows(f"{_HF}self_attn.q_proj.{end}", "q"),
        Part(f"{_HF}self_attn.k_proj.{end}", "kv", "kv_heads"),
        Part(f"{_HF}self_attn.v_proj.{end}", "kv", "kv_heads"),
    )


_DENSE = Rule(f"{_LAYER}attention.dense.weight", (Part(f"{_HF}self_attn.o_proj.weight", "hidden", "columns"),), "q")
_DENSE_BIAS = Rule(
    f"{_LAYER}attention.dense.bias",
    (_whole(f"{_HF}self_attn.o_proj.bias", "hidden"),),
    "",
    "plain",
    when="dense_bias",
)
_ATTENTION = (
    Rule(f"{_LAYER}attention.qkv.weight", _qkv("weight"), "hidden"),
    Rule(f"{_LAYER}attention.qkv.bias", _qkv("bias"), "", "plain", when="qkv_bias"),
    _DENSE,
    _DENSE_BIAS,
    _norm(f"{_LAYER}attention.q_layernorm", f"{_HF}self_attn.q_norm", "head", when="qk_norm"),
    _norm(f"{_LAYER}attention.k_layernorm", f"{_HF}self_attn.k_norm", "head", when="qk_norm"),
)


def _mlp(stage: Stage = "layer") -> tuple[Rule, ...]:
    """gate_proj -> fc, up_proj -> gate, down_proj -> proj, with biases where the model has them."""
    fc, gate, proj = (f"{_HF}mlp.{name}_proj" for name in ("gate", "up", "down"))
    down = Part(f"{proj}.weight", "hidden", "columns")
    return (
        Rule(f"{_LAYER}mlp.fc.weight", (_rows(f"{fc}.weight", "inter"),), "hidden", stage=stage),
        Rule(f"{_LAYER}mlp.fc.bias", (_rows(f"{fc}.bias", "inter"),), "", "plain", stage, "mlp_bias"),
        Rule(f"{_LAYER}mlp.gate.weight", (_rows(f"{gate}.weight", "inter"),), "hidden", stage=stage),
        Rule(f"{_LAYER}mlp.gate.bias", (_rows(f"{gate}.bias", "inter"),), "", "plain", stage, "mlp_bias"),
        Rule(f"{_LAYER}mlp.proj.weight", (down,), "inter", stage=stage),
        Rule(f"{_LAYER}mlp.proj.bias", (_whole(f"{proj}.bias", "hidden"),), "", "plain", stage, "mlp_bias"),
    )


def _experts(module: str, up: str, gate: str, down: str) -> tuple[Rule, ...]:
    """Per expert [up; gate] stacked, and down; the router stays float32 and whole."""
    expert = f"{_HF}{module}.experts.{{e}}."
    up_gate = tuple(Part(f"{expert}{name}.weight", "moe_inter", "moe_rows") for name in (up, gate))
    down_part = Part(f"{expert}{down}.weight", "hidden", "moe_columns")
    router = _whole(f"{_HF}{module}.gate.weight", "experts")
    return (
        Rule(f"{_LAYER}mlp.fc.weight", up_gate, "hidden", "expert", "sparse"),
        Rule(f"{_LAYER}mlp.proj.weight", (down_part,), "moe_inter", "expert", "sparse"),
        Rule(f"{_LAYER}mlp.router.weight", (router,), "hidden", "router", "sparse"),
    )


def _shared_expert() -> tuple[Rule, ...]:
    """Qwen2-MoE's always-on expert: a fused [up; gate] MLP, and the gate that weighs it."""
    hf, target = f"{_HF}mlp.shared_expert", f"{_LAYER}mlp.shared_expert"
    up_gate = tuple(_rows(f"{hf}.{name}_proj.weight", "shared_inter") for name in ("up", "gate"))
    down = Part(f"{hf}.down_proj.weight", "hidden", "columns")
    gate = _whole(f"{hf}_gate.weight", "one")
    return (
        Rule(f"{target}.fc.weight", up_gate, "hidden", stage="sparse", when="shared_expert"),
        Rule(f"{target}.proj.weight", (down,), "shared_inter", stage="sparse", when="shared_expert"),
        Rule(f"{target}_gate.weight", (gate,), "hidden", "plain", "sparse", "shared_expert"),
    )


_TWO_NORMS = (
    _norm(f"{_LAYER}input_layernorm", f"{_HF}input_layernorm"),
    _norm(f"{_LAYER}post_layernorm", f"{_HF}post_attention_layernorm"),
)
_FOUR_NORMS = (
    *_TWO_NORMS,
    _norm(f"{_LAYER}pre_feedforward_layernorm", f"{_HF}pre_feedforward_layernorm"),
    _norm(f"{_LAYER}post_feedforward_layernorm", f"{_HF}post_feedforward_layernorm"),
)
_LLAMA = (*_FIRST, *_TWO_NORMS, *_ATTENTION, *_mlp(), *_LAST)
_GEMMA2 = (*_FIRST, *_FOUR_NORMS, *_ATTENTION, *_mlp(), *_LAST)
_MIXTRAL = (
    *_FIRST,
    *_TWO_NORMS,
    *_ATTENTION,
    *_experts("block_sparse_moe", up="w3", gate="w1", down="w2"),
    *_LAST,
)
_QWEN_MOE = (
    *_FIRST,
    *_TWO_NORMS,
    *_ATTENTION,
    *_experts("mlp", up="up_proj", gate="gate_proj", down="down_proj"),
    *_shared_expert(),
    *_mlp("dense"),
    *_LAST,
)

_PHI3_QKV = f"{_HF}self_attn.qkv_proj.weight"
_PHI3_GATE_UP = f"{_HF}mlp.gate_up_proj.weight"
_PHI3 = (
    *_FIRST,
    *_TWO_NORMS,
    Rule(
        f"{_LAYER}attention.qkv.weight",
        (
            _rows(_PHI3_QKV, "q"),
            Part(_PHI3_QKV, "kv", "kv_heads", after="q"),
            Part(_PHI3_QKV, "kv", "kv_heads", after="q+kv"),
        ),
        "hidden",
    ),
    _DENSE,
    Rule(
        f"{_LAYER}mlp.fc.weight",
        (_rows(_PHI3_GATE_UP, "inter", after="inter"), _rows(_PHI3_GATE_UP, "inter")),
        "hidden",
    ),
    Rule(f"{_LAYER}mlp.proj.weight", (Part(f"{_HF}mlp.down_proj.weight", "hidden", "columns"),), "inter"),
    *_LAST,
)


def _gpt2_qkv(end: str, transposed: bool) -> tuple[Part, ...]:
    source = f"{_H}attn.c_attn.{end}"
    return (
        Part(source, "q", "rows", "", transposed),
        Part(source, "kv", "kv_heads", "q", transposed),
        Part(source, "kv", "kv_heads", "q+kv", transposed),
    )


def _conv1d(target: str, source: str, rows: str, columns: str, cut: Cut) -> tuple[Rule, Rule]:
    """GPT-2 keeps linear weights as [inputs, outputs]; a bias is cut like the outputs, else whole on every rank."""
    bias_cut: Cut = "rows" if cut == "rows" else "whole"
    return (
        Rule(f"{_LAYER}{target}.weight", (Part(f"{_H}{source}.weight", rows, cut, "", True),), columns),
        Rule(f"{_LAYER}{target}.bias", (Part(f"{_H}{source}.bias", rows, bias_cut),), "", "plain"),
    )


_GPT2 = (
    _embedding("wte.weight"),
    Rule("transformer.position_embedding.weight", (_whole("wpe.weight", "positions"),), "hidden", "plain", "first"),
    *_layer_norm(f"{_LAYER}input_layernorm", f"{_H}ln_1"),
    Rule(f"{_LAYER}attention.qkv.weight", _gpt2_qkv("weight", True), "hidden"),
    Rule(f"{_LAYER}attention.qkv.bias", _gpt2_qkv("bias", False), "", "plain"),
    *_conv1d("attention.dense", "attn.c_proj", "hidden", "q", "columns"),
    *_layer_norm(f"{_LAYER}post_layernorm", f"{_H}ln_2"),
    *_conv1d("mlp.fc", "mlp.c_fc", "inter", "hidden", "rows"),
    *_conv1d("mlp.proj", "mlp.c_proj", "hidden", "inter", "columns"),
    *_layer_norm("transformer.ln_f", "ln_f", "last"),
    *_head("wte.weight"),
)

WEIGHT_MAPS: dict[str, WeightMap] = {
    "llama": WeightMap(_LLAMA),
    "mistral": WeightMap(_LLAMA),
    "qwen2": WeightMap(_LLAMA),
    "qwen3": WeightMap(_LLAMA),
    "gemma": WeightMap(_LLAMA),
    "gemma2": WeightMap(_GEMMA2),
    "gemma3": WeightMap(_GEMMA2),
    "mixtral": WeightMap(_MIXTRAL),
    "qwen2_moe": WeightMap(_QWEN_MOE),
    "qwen3_moe": WeightMap(_QWEN_MOE),
    "phi3": WeightMap(_PHI3),
    "gpt2": WeightMap(
        _GPT2, prefixes=("transformer.", ""), ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias", "*.rotary_emb.*")
    ),
}
