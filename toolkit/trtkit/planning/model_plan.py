"""ModelPlan: what one model of a deployment weighs and costs. Knows one model, not the pair."""

from dataclasses import dataclass
from functools import cached_property

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.config.schema import BuildConfig
from trtkit.engines.requested_spec import engine_spec
from trtkit.engines.spec import EngineSpec
from trtkit.planning.buffers import activation_bytes, logits_bytes
from trtkit.planning.gpus import GpuModel
from trtkit.planning.kv_cache import KvPolicy, kv_bytes_per_token, kv_bytes_per_token_of_rank, touched_blocks
from trtkit.planning.memory import ModelShare
from trtkit.planning.roofline import PassCost, pass_cost, pass_ms
from trtkit.planning.split import Split
from trtkit.planning.weights import WeightFormat, rank_bytes

# Rows of one pass of the reference engine, at most.
REFERENCE_PASS_TOKENS = 512


@dataclass(frozen=True)
class ModelPlan:
    """One role of a deployment.

    policy: what is kept of a sequence. logits_tokens: tokens of one sequence whose logits are held at a time.
    head_rows: how many logits a draft computes, None for all.
    """

    role: str
    spec: ModelSpec
    weights: WeightFormat
    split: Split
    policy: KvPolicy
    limits: EngineSpec
    logits_tokens: int
    head_rows: int | None = None

    @cached_property
    def rank_bytes(self) -> tuple[int, ...]:
        """Bytes of each rank file's tensors."""
        return tuple(rank_bytes(self.spec, self.split, self.weights, rank) for rank in range(self.split.num_ranks))

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, all ranks together."""
        return kv_bytes_per_token(self.spec, self.weights.dtype, self.policy.kv_dtype)

    @cached_property
    def kv_bytes_per_token_of_rank(self) -> int:
        """Keys and values of one token on the fullest rank."""
        return kv_bytes_per_token_of_rank(self.spec, self.split, self.weights.dtype, self.policy.kv_dtype)

    @property
    def tokens_per_sequence(self) -> int:
        """Token slots of the longest sequence."""
        return self.policy.tokens_held(self.limits.built_max_seq_len)

    @property
    def kv_bytes_per_sequence(self) -> int:
        """Keys and values of the longest sequence."""
        return self.tokens_per_sequence * self.kv_bytes_per_token

    @cached_property
    def buffer_bytes(self) -> int:
        """Activations and logits of one rank."""
        activations = activation_bytes(self.spec, self.split, self.weights.dtype, self.limits.max_num_tokens)
        return activations + logits_bytes(self.spec, self.limits.max_batch_size, self.logits_tokens)

    @property
    def reference_cache_bytes(self) -> int:
        """What trtkit's own engine allocates at start: the blocks of the longest sequence, for each of the batch.

        With sinks of its own it never holds more of a sequence than sinks, window and the tokens of one pass.
        """
        size, policy = self.policy.block_size, self.policy
        blocks = -(-self.limits.max_seq_len // size)
        if self.limits.attention_sinks and policy.kept_tokens is not None:
            window = policy.kept_tokens - policy.sink_tokens
            most = max(REFERENCE_PASS_TOKENS, 2 * self.limits.max_batch_size)
            blocks = -(-policy.sink_tokens // size) + touched_blocks(window + min(most, max(window, 128)) - 1, size)
        return self.limits.max_batch_size * blocks * size * self.kv_bytes_per_token

    def share(self, policy: KvPolicy | None = None) -> ModelShare:
        """This model on the fullest of its GPUs, with another KV policy if one is given."""
        policy = policy or self.policy
        per_token = kv_bytes_per_token_of_rank(self.spec, self.split, self.weights.dtype, policy.kv_dtype)
        tokens = policy.tokens_held(self.limits.built_max_seq_len)
        return ModelShare(max(self.rank_bytes), self.buffer_bytes, tokens * per_token, tokens)

    @cached_property
    def cost(self) -> PassCost:
        """What one pass reads and computes."""
        return pass_cost(self.spec, self.weights, self.split, self.kv_bytes_per_token, self.head_rows)

    def token_ms(self, gpu: GpuModel, context_tokens: int, *, sequences: int = 1, new_tokens: int = 1) -> float:
        """Milliseconds of one pass."""
        return pass_ms(
            self.cost, gpu, sequences=sequences, new_tokens=new_tokens, context_tokens=self._attended(context_tokens)
        )

    def _attended(self, context_tokens: int) -> int:
        kept = self.policy.kept_tokens
        return context_tokens if kept is None else min(context_tokens, kept)


def model_plan(role: str, spec: ModelSpec, config: BuildConfig, head_rows: int | None = None) -> ModelPlan:
    """The plan of one role of a build config. head_rows: what its draft_vocabulary.json leaves of the head, if any."""
    model, sinks, limits = config.models[role], config.attention_sinks, engine_spec(role, config, sm=None)
    # Every verified token of the target; and of the draft, whose logits are handed over, every token it proposes.
    proposed = config.max_draft_len if role == "draft" and limits.generation_logits else 1
    return ModelPlan(
        role=role,
        spec=spec,
        weights=WeightFormat(model.dtype, model.quantization, config.kv_cache.dtype),
        split=Split(model.tensor_parallel, model.pipeline_parallel, model.expert_parallel),
        policy=KvPolicy(
            kv_dtype=config.kv_cache.dtype,
            block_size=config.kv_cache.block_size,
            keep="sinks and window" if sinks else "all",
            kept_tokens=sinks.sink_tokens + sinks.window_tokens if sinks else None,
            sink_tokens=sinks.sink_tokens if sinks else 0,
        ),
        limits=limits,
        logits_tokens=max(proposed, limits.max_draft_len + 1),
        # TensorRT-LLM builds whole heads; trtkit's own engine reads the file.
        head_rows=head_rows if config.backend == "reference" else None,
    )
