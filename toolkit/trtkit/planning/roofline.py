"""Time of one pass from bytes and operations. Knows rates of data sheets; kernels, launches and networks are left out.

A pass takes as long as its memory traffic or its arithmetic, whichever is longer (Williams et al., Roofline, 2009).
The result is a lower bound: real kernels reach 60 to 90 % of it, and small models wait for launches.
"""

from dataclasses import dataclass

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.planning.gpus import GpuModel
from trtkit.planning.split import Split
from trtkit.planning.weights import WeightFormat, decode_flops, dense_bytes, expert_bytes

_FP8_RATE = frozenset({"fp8", "fp8_rowwise", "w4a8_awq", "int8_smoothquant", "nvfp4"})


@dataclass(frozen=True)
class PassCost:
    """What one model reads and computes per pass; everything is of the whole model.

    dense_bytes once per pass, kv_bytes_per_token once per token of context and sequence, flops per new token. Of
    expert_bytes a pass reads the experts that its tokens choose; expert_share: of all experts, those of one token.
    ranks: GPUs that share each of them.
    """

    dense_bytes: int
    expert_bytes: int
    expert_share: float
    kv_bytes_per_token: int
    flops_per_token: int
    ranks: int
    fp8_compute: bool

    def weight_bytes(self, num_tokens: int = 1) -> float:
        """What a pass over so many tokens reads: each of them chooses its experts anew, all with the same chance."""
        return self.dense_bytes + self.expert_bytes * (1 - (1 - self.expert_share) ** num_tokens)


def pass_cost(
    spec: ModelSpec, weights: WeightFormat, split: Split, kv_bytes_per_token: int, head_rows: int | None = None
) -> PassCost:
    """The cost of a model stored in a format; head_rows: of the head, where a draft computes a part of its logits."""
    # Pipeline stages work one after another on one token: they share memory, not time.
    # A KV head that several ranks hold is read by each of them.
    copies = split.tensor * split.kv_heads(spec.num_kv_heads) / spec.num_kv_heads
    return PassCost(
        dense_bytes=dense_bytes(spec, weights, head_rows),
        expert_bytes=expert_bytes(spec, weights),
        expert_share=spec.moe.top_k / spec.moe.num_experts if spec.moe is not None else 0.0,
        kv_bytes_per_token=round(kv_bytes_per_token * copies),
        flops_per_token=decode_flops(spec),
        ranks=split.tensor,
        fp8_compute=weights.quantization in _FP8_RATE,
    )


def pass_ms(cost: PassCost, gpu: GpuModel, *, sequences: int, new_tokens: int, context_tokens: int) -> float:
    """Milliseconds of one pass over `sequences`, each with `new_tokens` new and `context_tokens` earlier tokens."""
    traffic = cost.weight_bytes(sequences * new_tokens) + sequences * context_tokens * cost.kv_bytes_per_token
    flops = sequences * new_tokens * cost.flops_per_token
    rate = gpu.fp8_flops if cost.fp8_compute and gpu.fp8_flops else gpu.fp16_flops
    seconds = max(traffic / gpu.bandwidth_bytes_per_s, flops / rate) / cost.ranks
    return 1000 * seconds
