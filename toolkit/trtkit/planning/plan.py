"""Plan: the prediction for a whole deployment, assembled from its models. Knows the arithmetic's parts, no output."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.config.schema import BuildConfig, DraftTarget
from trtkit.engines.placement import place
from trtkit.planning.gpus import GpuModel
from trtkit.planning.host import ConvertedModel, HostNeed, host_need
from trtkit.planning.kv_cache import KvPolicy, heavy_hitters
from trtkit.planning.memory import Fit, fit, fit_apart
from trtkit.planning.model_plan import ModelPlan, model_plan
from trtkit.planning.rolling import RollingCost, rolling_cost
from trtkit.planning.speculation import (
    ACCEPTANCES,
    DEFAULT_ACCEPTANCE,
    DRAFT_LENGTHS,
    Gain,
    RoundCosts,
    best_draft_len,
    break_even,
    chance_of,
    gain,
)
from trtkit.planning.weights import stored_bytes

_ALTERNATIVE_KV = ("auto", "fp8", "int8", "int4")
_LARGEST_BATCH = 1024


@dataclass(frozen=True)
class PlanInput:
    """What a plan may know besides the YAML.

    gpu None means a CPU deployment: then memory_bytes is the host's, and no times are predicted. context_tokens: the
    earlier tokens of a sequence in the predictions of time. acceptance_rate: accepted / drafted tokens as measured at
    the draft length of the YAML, None to assume a chance of 0.7 per token. head_rows: role -> how many logits it
    computes, for drafts that compute a part of them. unconverted: roles whose checkpoint the LLM API reads as
    it is stored.
    """

    gpu: GpuModel | None
    memory_bytes: int | None
    context_tokens: int = 0
    acceptance_rate: float | None = None
    head_rows: Mapping[str, int] = field(default_factory=dict)
    unconverted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Alternative:
    """How many sequences would fit with another KV cache."""

    kv_dtype: str
    keep: str
    kv_bytes_per_sequence: int
    max_sequences: int


@dataclass(frozen=True)
class SpeculationPlan:
    """The prediction for drafting.

    draft_cost: one draft step relative to one target pass. chance: per-token acceptance that the recommendation
    assumes. break_even: the chance above which the YAML's draft length pays. crossover_batch: sequences in flight from
    which it no longer does, None when that is beyond 1024 or no GPU is known.
    """

    draft_cost: float
    chance: float
    gains: tuple[Gain, ...]
    recommended: int
    break_even: float | None
    crossover_batch: int | None


@dataclass(frozen=True)
class Plan:
    """Everything `trtkit plan` says. shared: draft and target are on the same GPUs."""

    config: BuildConfig
    given: PlanInput
    models: Mapping[str, ModelPlan]
    shared: bool
    fit: Fit | None
    alternatives: tuple[Alternative, ...]
    speculation: SpeculationPlan | None
    rolling: RollingCost | None
    host: HostNeed

    @property
    def kv_bytes_per_sequence(self) -> int:
        """What one of the longest sequences takes in all models together."""
        return sum(model.kv_bytes_per_sequence for model in self.models.values())


def make_plan(config: BuildConfig, specs: Mapping[str, ModelSpec], given: PlanInput) -> Plan:
    """Predict a deployment. `specs` has every role of the config."""
    specs = padded_specs(config, specs)
    models = {role: model_plan(role, specs[role], config, given.head_rows.get(role)) for role in config.models}
    # The LLM API runs the draft on the target's GPUs, however many there are.
    shared = config.draft is not None and (config.backend == "llmapi" or place(config).shared)
    engines = config.backend in ("engine", "auto")
    converted = [
        ConvertedModel(model.spec, model.weights, _written_bytes(config, model))
        for role, model in models.items()
        if role not in given.unconverted
    ]
    return Plan(
        config=config,
        given=given,
        models=models,
        shared=shared,
        fit=_fit(given, models.values(), None, shared=shared),
        alternatives=tuple(_alternatives(config, given, models.values(), shared=shared)),
        speculation=_speculation(config, models, given),
        rolling=rolling_cost(config, models["target"], given.gpu),
        host=host_need(converted, engines=engines),
    )


def _written_bytes(config: BuildConfig, model: ModelPlan) -> tuple[int, ...]:
    """Bytes of each weight file: one for every rank, or one checkpoint in Hugging Face's format for the LLM API."""
    return (stored_bytes(model.spec, model.weights),) if config.backend == "llmapi" else model.rank_bytes


def padded_specs(config: BuildConfig, specs: Mapping[str, ModelSpec]) -> dict[str, ModelSpec]:
    """The shapes as they are converted: with pad_draft_vocab, a smaller draft gets the target's vocabulary."""
    speculation, shapes = config.speculation, dict(specs)
    if isinstance(speculation, DraftTarget) and speculation.pad_draft_vocab:
        size = max(shapes["draft"].vocab_size, shapes["target"].vocab_size)
        shapes["draft"] = replace(shapes["draft"], vocab_size=size)
    return shapes


def _fit(given: PlanInput, models: Iterable[ModelPlan], policy: KvPolicy | None, *, shared: bool) -> Fit | None:
    memory = given.gpu.memory_bytes if given.gpu else given.memory_bytes
    shares = tuple(model.share(policy) for model in models)
    return (fit if shared else fit_apart)(memory, shares) if memory is not None else None


def _alternatives(
    config: BuildConfig, given: PlanInput, models: Collection[ModelPlan], *, shared: bool
) -> list[Alternative]:
    block_size, longest = config.kv_cache.block_size, max(model.limits.built_max_seq_len for model in models)
    sinks = config.attention_sinks
    kept = sinks.sink_tokens + sinks.window_tokens if sinks else max(block_size, longest // 4)
    found = []
    for kv_dtype in _ALTERNATIVE_KV:
        for policy in (
            KvPolicy(kv_dtype, block_size),
            KvPolicy(kv_dtype, block_size, "sinks and window", kept),
            heavy_hitters(kv_dtype, block_size, longest),
        ):
            solution = _fit(given, models, policy, shared=shared)
            per_sequence = sum(model.share(policy).kv_bytes_per_sequence for model in models)
            if solution is not None:
                found.append(Alternative(kv_dtype, policy.keep, per_sequence, solution.sequences))
    return found


def round_costs(target: ModelPlan, draft: ModelPlan, given: PlanInput, sequences: int = 1) -> RoundCosts:
    """Costs relative to a plain target pass: from the roofline, or without a GPU from the bytes that are read."""
    gpu, context = given.gpu, given.context_tokens
    if gpu is None:
        read = target.cost.weight_bytes(sequences)
        return RoundCosts(
            draft.cost.weight_bytes(sequences) / read,
            lambda draft_len: target.cost.weight_bytes(sequences * (draft_len + 1)) / read,
        )
    plain = target.token_ms(gpu, context, sequences=sequences)
    step = draft.token_ms(gpu, context, sequences=sequences)

    def verify(draft_len: int) -> float:
        return target.token_ms(gpu, context, sequences=sequences, new_tokens=draft_len + 1) / plain

    return RoundCosts(step / plain, verify)


def _speculation(config: BuildConfig, models: Mapping[str, ModelPlan], given: PlanInput) -> SpeculationPlan | None:
    if not isinstance(config.speculation, DraftTarget):
        return None
    target, draft, draft_len = models["target"], models["draft"], config.speculation.max_draft_len
    costs = round_costs(target, draft, given)
    measured = given.acceptance_rate
    chance = DEFAULT_ACCEPTANCE if measured is None else chance_of(measured, draft_len)
    rates = sorted({*ACCEPTANCES, round(chance, 4)})
    return SpeculationPlan(
        draft_cost=costs.draft_step,
        chance=chance,
        gains=tuple(gain(rate, length, costs) for rate in rates for length in DRAFT_LENGTHS),
        recommended=best_draft_len(chance, costs),
        break_even=break_even(draft_len, costs),
        crossover_batch=_crossover(target, draft, given, chance, draft_len),
    )


def _crossover(target: ModelPlan, draft: ModelPlan, given: PlanInput, chance: float, draft_len: int) -> int | None:
    """The smallest batch at which this draft length no longer pays."""
    if given.gpu is None:
        return None
    for sequences in range(1, _LARGEST_BATCH + 1):
        if gain(chance, draft_len, round_costs(target, draft, given, sequences)).speedup <= 1:
            return sequences
    return None
