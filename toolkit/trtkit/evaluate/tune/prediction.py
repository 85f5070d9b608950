"""What the plan predicts for the loads and draft lengths that were tuned. Knows arithmetic, no measurement."""

from collections.abc import Sequence
from dataclasses import dataclass

from trtkit.builds import Build
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.errors import CheckpointError
from trtkit.planning.gpus import find_gpu
from trtkit.planning.model_plan import ModelPlan, model_plan
from trtkit.planning.plan import PlanInput, round_costs
from trtkit.planning.speculation import best_draft_len, chance_of, measured_speedup


@dataclass(frozen=True)
class Predictor:
    """The two models of a build as the plan sees them, on the GPU that they are served by, or on a CPU."""

    target: ModelPlan
    draft: ModelPlan
    given: PlanInput

    def speedup(self, acceptance_rate: float, draft_len: int, concurrency: int) -> float:
        """For an acceptance (accepted / drafted) that was measured at this draft length."""
        costs = round_costs(self.target, self.draft, self.given, concurrency)
        return measured_speedup(acceptance_rate, draft_len, costs)

    def best(self, acceptance_rate: float, draft_len: int, concurrency: int, lengths: Sequence[int]) -> int:
        """The length that the plan would choose, from the acceptance measured at one of them; 0 is off."""
        costs = round_costs(self.target, self.draft, self.given, concurrency)
        return best_draft_len(chance_of(acceptance_rate, draft_len), costs, lengths)


def predictor_of(build: Build) -> Predictor | None:
    """None when the original checkpoints, whose shapes the plan needs, are no longer there."""
    config = build.config
    try:
        specs = {role: read_model_spec(build.source(role)) for role in ("target", "draft")}
    except (CheckpointError, KeyError):
        return None
    gpu = find_gpu(config.gpu.name) if config.gpu is not None and config.backend != "reference" else None
    plans = {role: model_plan(role, spec, config) for role, spec in specs.items()}
    return Predictor(plans["target"], plans["draft"], PlanInput(gpu, None))
