"""Which GPUs each model of a deployment runs on. Knows counts of ranks and GPUs, no memory and no file."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtkit.config.schema import BuildConfig, DraftTarget


@dataclass(frozen=True)
class Placement:
    """Role -> the GPUs of its ranks, in order of rank."""

    devices: Mapping[str, tuple[int, ...]]

    @property
    def shared(self) -> bool:
        """Whether two models have a GPU in common, and therefore its memory."""
        named = [device for devices in self.devices.values() for device in devices]
        return len(set(named)) < len(named)

    @property
    def participants(self) -> dict[str, tuple[int, ...]]:
        """Role -> the MPI ranks of its processes where all are started beforehand: 0 orchestrates, then the draft's."""
        drafting = len(self.devices.get("draft", ()))
        ranks = {"draft": range(1, 1 + drafting), "target": range(1 + drafting, self.num_processes)}
        return {role: tuple(ranks[role]) for role in self.devices}

    @property
    def num_processes(self) -> int:
        """The orchestrator's process and one for every rank."""
        return 1 + sum(len(devices) for devices in self.devices.values())

    @property
    def num_gpus(self) -> int:
        """How many GPUs a machine needs for it."""
        return 1 + max(device for devices in self.devices.values() for device in devices)


def place(config: BuildConfig) -> Placement:
    """The target has the first GPUs; the draft the next ones where gpu.count suffices for both, else the first too.

    A YAML without a GPU counts as one GPU. More ranks than GPUs are named all the same; GPU-COUNT refuses them.
    """
    count = config.gpu.count if config.gpu else 1
    ranks = {role: model.tensor_parallel * model.pipeline_parallel for role, model in config.models.items()}
    fits = sum(ranks.values()) <= count
    first = {"target": 0, "draft": ranks["target"] if fits else 0}
    return Placement({role: tuple(range(first[role], first[role] + number)) for role, number in ranks.items()})


def hands_logits_over(config: BuildConfig) -> bool:
    """Whether the draft's processes send their logits to the target's by MPI (speculative_decoding_fast_logits).

    NVIDIA's backend does so only in orchestrator mode with processes that were started beforehand; elsewhere the
    logits pass through Triton, K x vocabulary numbers for every step. The receiving rank shares them with the tensor
    ranks and not with pipeline stages (generateRequestOptions.cpp), so a pair with stages goes the other way.
    """
    speculation = config.speculation
    by_logits = isinstance(speculation, DraftTarget) and speculation.acceptance == "logits"
    has_stages = any(model.pipeline_parallel > 1 for model in config.models.values())
    return by_logits and config.backend == "engine" and not has_stages
