"""Rules about a TensorRT-LLM checkpoint: rank files and expected tensors. Knows no scales and no engine."""

from collections.abc import Iterable
from itertools import islice

from trtkit.checking.expected_tensors import expected_tensors
from trtkit.checking.rule import Hit, LooksAt, Rule, hit
from trtkit.checking.subjects.trtllm_checkpoint import TrtllmCheckpoint

_SHOWN = 3
# quant_algo -> what the loader wants beside a weight that is stored in it (quantization/layers.py). SmoothQuant is left
# out: TensorRT-LLM's converter and modelopt's export name its scales differently.
_SCALES_OF = {
    "FP8": ("weights_scaling_factor", "activation_scaling_factor"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("per_channel_scale",),
    "W8A16": ("per_channel_scale",),
    "W4A16": ("per_channel_scale",),
    "W4A16_AWQ": ("weights_scaling_factor", "prequant_scaling_factor"),
    "W4A8_AWQ": ("weights_scaling_factor", "prequant_scaling_factor", "activation_scaling_factor"),
    "NVFP4": ("weights_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor"),
}
_CODES = ("int8", "uint8", "float8")


def _missing_ranks(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    missing = (f"rank{rank}.safetensors" for rank in range(checkpoint.world_size) if rank not in checkpoint.ranks)
    first = list(islice(missing, _SHOWN + 1))
    if first:
        yield hit("", files=_listed(first), world=checkpoint.world_size)


def _missing_tensors(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    for rank, tensors in checkpoint.ranks.items():
        expected = expected_tensors(checkpoint.config, rank)
        tied = "transformer.vocab_embedding.weight" in tensors
        absent = [n for n in expected if n not in tensors and not (n == "lm_head.weight" and tied)]
        if absent:
            yield hit(f"rank{rank}.safetensors", count=len(absent), names=_listed(absent))


def _unexpected_tensors(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    for rank, tensors in checkpoint.ranks.items():
        expected = expected_tensors(checkpoint.config, rank)
        extra = [name for name in tensors if expected and name not in expected and not _is_quantisation(name)]
        if extra:
            yield hit(f"rank{rank}.safetensors", count=len(extra), names=_listed(extra))


def _wrong_shapes(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    if checkpoint.quant_algorithm is not None:
        return
    for rank, tensors in checkpoint.ranks.items():
        for name, shape in expected_tensors(checkpoint.config, rank).items():
            if name in tensors and tensors[name].shape != shape:
                yield hit(f"rank{rank}.safetensors", name=name, found=list(tensors[name].shape), shape=list(shape))


def _missing_scales(checkpoint: TrtllmCheckpoint) -> Iterable[Hit]:
    wanted = _SCALES_OF.get(checkpoint.quant_algorithm or "", ())
    for rank, tensors in checkpoint.ranks.items():
        stems = [
            name.removesuffix(".weight")
            for name, tensor in tensors.items()
            if name.endswith(".weight") and tensor.dtype.startswith(_CODES)
        ]
        absent = [f"{stem}.{scale}" for stem in stems for scale in wanted if f"{stem}.{scale}" not in tensors]
        if absent:
            yield hit(f"rank{rank}.safetensors", count=len(absent), names=_listed(absent))


def _is_quantisation(name: str) -> bool:
    return name.rpartition(".")[2] not in ("weight", "bias")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


_LOOKS: LooksAt = "TensorRT-LLM checkpoint"
TRTLLM_CHECKPOINT_RULES: tuple[Rule[TrtllmCheckpoint], ...] = (
    Rule(
        code="TRT-RANKS",
        severity="error",
        looks_at=_LOOKS,
        when="a rank file that config.json's mapping announces is not there",
        cause="{files} missing; config.json announces {world} ranks",
        fix="convert again into this directory; finished ranks are kept",
        source="modeling_utils.py: one file per rank",
        find=_missing_ranks,
        example=hit("", files="rank3.safetensors", world=4),
    ),
    Rule(
        code="TRT-MISSING",
        severity="error",
        looks_at=_LOOKS,
        when="a tensor that the architecture needs is not in its rank file",
        cause="{count} tensors missing: {names}",
        fix="convert again; the loader stops at the first of them",
        source="modeling_utils.py: required tensors; TensorRT-LLM issue #1677",
        find=_missing_tensors,
        example=hit("rank0.safetensors", count=1, names="transformer.layers.0.mlp.gate.weight"),
    ),
    Rule(
        code="TRT-SCALES",
        severity="error",
        looks_at=_LOOKS,
        when="a quantised weight lacks a scale that its format needs",
        cause="{count} scales of quantised weights missing: {names}",
        fix="convert the checkpoint again",
        source="quantization/layers.py; TensorRT-LLM issue #1677",
        find=_missing_scales,
        example=hit("rank0.safetensors", count=96, names="transformer.layers.0.attention.qkv.per_channel_scale, ..."),
    ),
    Rule(
        code="TRT-EXTRA",
        severity="warning",
        looks_at=_LOOKS,
        when="a rank file holds weights that the architecture has no place for",
        cause="{count} tensors that the loader ignores: {names}",
        fix="check that config.json and the rank files are from the same conversion",
        source="modeling_utils.py: unexpected tensors only warn",
        find=_unexpected_tensors,
        example=hit("rank0.safetensors", count=1, names="transformer.layers.0.mlp.extra.weight"),
    ),
    Rule(
        code="TRT-SHAPE",
        severity="error",
        looks_at=_LOOKS,
        when="a tensor of an unquantised checkpoint has another shape than config.json makes it",
        cause="{name} has shape {found}, config.json makes it {shape}",
        fix="convert again; check tp_size and the heads in config.json",
        source="models/llama/convert.py and its siblings",
        find=_wrong_shapes,
        example=hit("rank0.safetensors", name="lm_head.weight", found=[32000, 64], shape=[32016, 64]),
    ),
)
