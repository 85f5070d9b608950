"""Findings that come as errors: raised by the readers of files, listed here for the documentation. Reads nothing."""

from dataclasses import dataclass

from trtkit.errors import TrtkitError
from trtkit.findings import Finding, Severity


@dataclass(frozen=True)
class RaisedFinding:
    """A code that a reader raises: what it looks at, when, and an example of its sentence."""

    code: str
    looks_at: str
    when: str
    example: str
    source: str
    severity: Severity = "error"


def finding_of(error: TrtkitError, where: str) -> Finding:
    """The finding for an error that reading a file raised; `where` is used when the error names no file."""
    return Finding(error.code or "UNREADABLE", "error", error.where or where, error.cause, error.fix)


_HF = "checkpoint"
RAISED: tuple[RaisedFinding, ...] = (
    RaisedFinding(
        "CKPT-CONFIG",
        _HF,
        "config.json is missing, damaged, or a key has the wrong type",
        "num_attention_heads should be a positive integer, not 'x'",
        "configuration classes of transformers",
    ),
    RaisedFinding(
        "CKPT-ARCH",
        _HF,
        "an architecture that trtkit does not convert",
        "the architecture 'MambaForCausalLM' is not one trtkit converts",
        "trtkit's weight maps",
    ),
    RaisedFinding(
        "CKPT-ROPE",
        _HF,
        "a rope kind that is not known, or one without its parameters",
        "rope_type 'spiral' is unknown",
        "modeling_rope_utils.py of transformers",
    ),
    RaisedFinding(
        "CKPT-HEADS",
        _HF,
        "KV heads that do not divide the heads",
        "30 attention heads cannot share 4 key-value heads",
        "config.json",
    ),
    RaisedFinding(
        "CKPT-HEAD-SIZE",
        _HF,
        "a head size that is no multiple of 8, or above 256",
        "heads of 100 elements are not supported",
        "TensorRT-LLM issues #679 and #855",
    ),
    RaisedFinding(
        "CKPT-EOS",
        _HF,
        "neither generation_config.json nor config.json names an eos_token_id",
        "no eos_token_id, so an answer would never end",
        "TensorRT-LLM issue #5670",
    ),
    RaisedFinding(
        "CKPT-QUANT",
        _HF,
        "the weights are quantised already in a form that the converter does not read (AWQ, GPTQ, blocks, NVFP4)",
        "model.layers.0.mlp.up_proj.qweight: weights are stored in a quantised format",
        "tensor names of AutoAWQ, GPTQ, compressed-tensors and ModelOpt",
    ),
    RaisedFinding(
        "CKPT-SCALE",
        _HF,
        "a scale in a quantised checkpoint is not finite and positive; found while converting",
        "model.layers.3.self_attn.k_proj.k_scale is 0.0",
        "value = stored * scale",
    ),
    RaisedFinding(
        "CKPT-NAN",
        _HF,
        "a weight holds NaN or Inf; found while converting",
        "model.norm.weight: holds NaN or Inf",
        "IEEE 754",
        "warning",
    ),
    RaisedFinding(
        "CKPT-OVERFLOW",
        _HF,
        "a finite weight became Inf in the target dtype; found while converting",
        "model.norm.weight: holds values that became Inf in the target dtype",
        "IEEE 754 binary16",
        "warning",
    ),
    RaisedFinding(
        "CKPT-LFS",
        _HF,
        "a weight file is a Git-LFS pointer",
        "is a Git-LFS pointer of 135 bytes, not weights",
        "TensorRT-LLM issue #2052",
    ),
    RaisedFinding(
        "CKPT-TRUNCATED",
        _HF,
        "a weight file ends before its header says",
        "ends at byte 1000, but 'lm_head.weight' reaches to byte 2000",
        "safetensors format",
    ),
    RaisedFinding(
        "CKPT-HEADER",
        _HF,
        "a weight file is no safetensors file",
        "is not a safetensors file (its first bytes belong to another format)",
        "safetensors format",
    ),
    RaisedFinding(
        "CKPT-OFFSETS",
        _HF,
        "tensors overlap, leave gaps, or contradict their shapes",
        "'a' overlaps the tensor before it",
        "safetensors format",
    ),
    RaisedFinding(
        "CKPT-DUPLICATE", _HF, "a tensor is there twice", "names 'a' twice in its header", "safetensors format"
    ),
    RaisedFinding(
        "CKPT-DTYPE", _HF, "a tensor has a dtype that is not converted", "'a' has dtype 'F8_E8M0'", "safetensors format"
    ),
    RaisedFinding(
        "CKPT-INDEX",
        _HF,
        "the index is damaged, or several files lie there without one",
        "is not readable JSON (JSONDecodeError)",
        "model.safetensors.index.json",
    ),
    RaisedFinding(
        "CKPT-PATH",
        _HF,
        "the index names a file outside the folder",
        "names the shard '../x'",
        "model.safetensors.index.json",
    ),
    RaisedFinding(
        "CKPT-MISSING",
        _HF,
        "weights, a shard, or a tensor that config.json announces are not there",
        "lm_head.weight missing from the 290 tensors of this llama checkpoint",
        "TensorRT-LLM issues #1733 and #2677",
    ),
    RaisedFinding(
        "CKPT-SHAPE",
        _HF,
        "a tensor's shape contradicts config.json",
        "model.norm.weight has shape [64]; config.json makes it [128]",
        "config.json",
    ),
    RaisedFinding(
        "CKPT-UNUSED",
        _HF,
        "a tensor that the architecture has no place for",
        "model.extra.weight belong to nothing that the llama architecture has",
        "trtkit's weight maps",
    ),
    RaisedFinding(
        "CKPT-PICKLE",
        _HF,
        "the weights are a pickle, which runs code when it is loaded",
        "holds its weights as a pickle (pytorch_model.bin)",
        "Python's pickle documentation",
    ),
    RaisedFinding("CKPT-READ", _HF, "a file cannot be read", "cannot be read: Permission denied", "the system"),
    RaisedFinding(
        "TOK-MISSING",
        _HF,
        "there is no tokenizer.json",
        "only tokenizer.model is there, and serving needs the fast form",
        "tokenizers",
    ),
    RaisedFinding(
        "TOK-UNREADABLE", _HF, "tokenizer.json is damaged", "not a tokenizer.json: KeyError 'model'", "tokenizers"
    ),
    RaisedFinding(
        "ENGINE-MISSING",
        "engine",
        "an engine directory without config.json",
        "build/x/engines/target holds no engine: config.json is missing",
        "tensorrtllm_backend issue #61",
    ),
    RaisedFinding(
        "ENGINE-CONFIG",
        "engine",
        "config.json is not an engine's",
        "not an engine's config.json: KeyError 'build_config'",
        "builder.py",
    ),
    RaisedFinding(
        "TRT-CONFIG",
        "TensorRT-LLM checkpoint",
        "config.json is missing, or lacks what the loader needs",
        "lacks num_hidden_layers",
        "modeling_utils.py: PretrainedConfig",
    ),
    RaisedFinding(
        "PBTXT-PLACEHOLDER",
        "repository",
        "config.pbtxt holds a placeholder that nobody filled in",
        "line 12 holds a placeholder that nobody filled in: data_type: ${logits_datatype}",
        "Triton server issues #7950, #8592",
    ),
    RaisedFinding(
        "PBTXT-PARSE",
        "repository",
        "config.pbtxt is no ModelConfig",
        "Triton could not read it: 3:1 : Message type has no field named 'x'",
        "model_config.proto",
    ),
    RaisedFinding(
        "PBTXT-FILE", "repository", "config.pbtxt cannot be read", "cannot read it: Permission denied", "the system"
    ),
    RaisedFinding(
        "LLM-YAML",
        "repository",
        "model.yaml of an llmapi model is no YAML mapping",
        "cannot be read as YAML: mapping values are not allowed here",
        "PyYAML",
    ),
    RaisedFinding(
        "BUILD-MISSING",
        "build",
        "a build directory without manifest.json: the build did not finish",
        "build/pair is not a finished build: manifest.json is missing",
        "trtkit",
    ),
    RaisedFinding(
        "BUILD-MANIFEST",
        "build",
        "manifest.json is damaged, or was written by another version",
        "lacks backend, inputs",
        "trtkit",
    ),
)
