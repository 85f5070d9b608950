"""Two models on one GPU get in config.pbtxt what the plan computes; a model with GPUs of its own takes what is left."""

from pathlib import Path

import pytest
from known_models import fill_cache
from trtkit.config.load import load_config
from trtkit.config.presets import presets
from trtkit.pipeline.dry_run import PlannedStage, dry_run
from trtkit.pipeline.run import BuildOptions
from trtkit.planning.record import plan_record
from trtkit.planning.request import PlanRequest, plan_config
from trtkit.repository.pbtxt import parse_pbtxt

MODELS = {"target": "tensorrt_llm", "draft": "tensorrt_llm_draft"}
FRACTION, TOKENS = "kv_cache_free_gpu_mem_fraction", "max_tokens_in_paged_kv_cache"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_cache(tmp_path_factory.mktemp("cache"))


def planned(cache: Path, *overrides: str, ignore: tuple[str, ...] = ()) -> list[PlannedStage]:
    config = load_config(presets()["llama8b_spec"], overrides)
    return dry_run(config, BuildOptions(cache=cache, where="pair.yaml", ignore=ignore))


def parameters(stages: list[PlannedStage]) -> dict[str, dict[str, str]]:
    """Role -> the parameters of its model."""
    texts = next(stage.texts for stage in stages if stage.stage == "repository")
    messages = {role: parse_pbtxt(texts[f"{name}/config.pbtxt"], where=name) for role, name in MODELS.items()}
    return {role: {key: value.string_value for key, value in m.parameters.items()} for role, m in messages.items()}


def test_what_the_plan_prints_is_what_is_rendered(cache: Path) -> None:
    record = plan_record(plan_config(load_config(presets()["llama8b_spec"]), PlanRequest(cache)))
    written = parameters(planned(cache))
    for role in MODELS:
        assert float(written[role][FRACTION]) == record["kv_fractions"][role] != 0.45
        assert int(written[role][TOKENS]) == record[TOKENS][role] > 0


@pytest.mark.parametrize(
    ("override", "fraction"), [("gpu.count=2", "0.9"), ("gpu=null", "0.45")], ids=["GPUs of their own", "unknown GPU"]
)
def test_elsewhere_each_takes_a_share_of_what_is_left(override: str, fraction: str, cache: Path) -> None:
    for written in parameters(planned(cache, override)).values():
        assert written[FRACTION] == fraction
        assert TOKENS not in written


def test_a_plan_that_holds_nothing_is_not_rendered(cache: Path) -> None:
    stages = planned(cache, "limits.max_input_len=120000", ignore=("MEMORY-FIT",))
    assert {written[FRACTION] for written in parameters(stages).values()} == {"0.45"}


def test_logits_are_accepted_over_mpi_by_engines_that_hand_them_out(cache: Path) -> None:
    """Orchestrator mode, every process started beforehand and named as a participant, logits gathered by both."""
    stages = planned(cache, "speculation.acceptance=logits", "gpu.count=2")
    for role, ranks in {"draft": "1", "target": "2"}.items():
        written = parameters(stages)[role]
        assert (written["participant_ids"], written["speculative_decoding_fast_logits"]) == (ranks, "true")
    commands = [" ".join(stage.command) for stage in stages if stage.stage.startswith("engine ")]
    assert all("--gather_generation_logits" in command and "--logits_dtype float32" in command for command in commands)
    serve = next(stage.texts["serve.sh"] for stage in stages if stage.stage == "launch")
    assert serve.count("shm-region-prefix-name=") == 3
    assert "export TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0" in serve
