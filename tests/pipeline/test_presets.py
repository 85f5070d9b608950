"""Every preset: it loads, its checks pass, and everything it generates for a GPU is golden, without any weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract_trtllm_build
import pytest
from known_models import fill_cache
from trtkit.checking.target import CheckOptions, check_target
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.load import load_config
from trtkit.config.presets import describe, presets
from trtkit.config.schema import BuildConfig
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.engines.inspect import read_engine
from trtkit.engines.release import find_release
from trtkit.engines.requested_spec import engine_spec
from trtkit.pipeline.dry_run import PlannedStage, dry_run
from trtkit.pipeline.request import gpu_sm
from trtkit.pipeline.run import BuildOptions
from trtkit.pipeline.stages import conversion_options
from trtkit.repository.pbtxt import parse_pbtxt

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "engines" / "presets"
FOR_GPUS = sorted(set(presets()) - {"smollm2_spec"})
WITH_ENGINES = [name for name in FOR_GPUS if not name.endswith("_llmapi")]
NAMED = {
    "llama70b_spec",
    "llama70b_spec_llmapi",
    "llama8b_spec",
    "llama8b_streaming_sinks",
    "mixtral_ep",
    "qwen72b_spec",
    "smollm2_spec",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_cache(tmp_path_factory.mktemp("cache"))


def plan(name: str, cache: Path) -> list[PlannedStage]:
    out = Path("build") / name
    return dry_run(load_config(presets()[name]), BuildOptions(cache=cache, where=f"{name}.yaml", out=out))


def texts(planned: list[PlannedStage]) -> dict[str, str]:
    """Path below the build directory -> text, of everything known before the first weight is read."""
    return {f"{stage.out.name}/{name}": text for stage in planned for name, text in stage.texts.items()}


def test_the_presets_are_the_promised_ones() -> None:
    assert set(presets()) == NAMED
    assert all(describe(path) for path in presets().values()), "a preset opens with a comment that says what it is"


@pytest.mark.parametrize("name", sorted(NAMED))
def test_nothing_but_the_absent_weights_is_amiss_with_a_preset(name: str, cache: Path) -> None:
    report = check_target(str(presets()[name]), CheckOptions(cache))
    assert {finding.code for finding in report.findings if finding.severity == "error"} <= {"CKPT-MISSING"}
    assert all(finding.fix for finding in report.findings)


@pytest.mark.parametrize("name", FOR_GPUS)
def test_everything_a_preset_generates_is_golden(
    name: str, cache: Path, assert_golden: Callable[[str, Path], None]
) -> None:
    planned = plan(name, cache)
    listing = {stage.stage: {"files": list(stage.files), "command": list(stage.command)} for stage in planned}
    assert_golden(json.dumps(listing, indent=1) + "\n", GOLDEN / name / "stages.json")
    for path, text in texts(planned).items():
        if text:
            assert_golden(_portable(text), GOLDEN / name / path)


@pytest.mark.parametrize("name", FOR_GPUS)
def test_every_config_pbtxt_is_whole(name: str, cache: Path) -> None:
    for path, text in texts(plan(name, cache)).items():
        if path.endswith(".pbtxt"):
            parse_pbtxt(text, where=path)


@pytest.mark.parametrize("name", WITH_ENGINES)
def test_the_release_itself_builds_what_the_preset_asks_for(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planned command, run by the contract checker of the preset's release on the preset's GPU."""
    config = load_config(presets()[name])
    for role in config.models:
        spec = engine_spec(role, config, gpu_sm(config))
        assert spec.sm is not None
        stage = next(stage for stage in plan(name, cache) if stage.stage == f"engine {role}")
        _write_checkpoint(tmp_path / "checkpoints" / role, role, config, cache)
        monkeypatch.chdir(tmp_path)
        assert contract_trtllm_build.main(list(stage.command[1:]), config.tensorrt_llm, spec.sm, 8) == 0
        built = read_engine(tmp_path / "engines" / role)
        assert built.paged_context_fmha == spec.paged_context_fmha
        assert built.spec.built_max_seq_len == spec.built_max_seq_len
        assert set(built.rank_files) == set(stage.files) - {"config.json"}


def test_the_pair_of_qwen_keeps_its_biases_out_of_fp8_and_its_vocabularies_apart(cache: Path) -> None:
    config = load_config(presets()["qwen72b_spec"])
    assert config.kv_cache.dtype == "auto"
    command = next(stage.command for stage in plan("qwen72b_spec", cache) if stage.stage == "engine target")
    assert "--use_fp8_context_fmha disable" in " ".join(command)


def test_engine_sinks_reach_builder_and_runtime(cache: Path) -> None:
    planned = plan("llama8b_streaming_sinks", cache)
    command = " ".join(next(stage.command for stage in planned if stage.stage == "engine target"))
    assert "--streamingllm enable" in command and "--use_paged_context_fmha disable" in command
    pbtxt = texts(planned)["model_repository/tensorrt_llm/config.pbtxt"]
    parameters = parse_pbtxt(pbtxt, where="tensorrt_llm").parameters
    assert parameters["sink_token_length"].string_value == "4"
    assert parameters["max_attention_window_size"].string_value == "2048"


@pytest.mark.parametrize("name", WITH_ENGINES)
def test_only_names_that_the_release_has_stand_in_config_pbtxt(name: str, cache: Path) -> None:
    release = find_release(load_config(presets()[name]).tensorrt_llm)
    assert release is not None and release.triton is not None
    rendered = texts(plan(name, cache))
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        path = f"model_repository/{model}/config.pbtxt"
        if path in rendered:
            message = parse_pbtxt(rendered[path], where=path)
            assert {tensor.name for tensor in message.input} <= set(release.triton.inputs)
            assert {tensor.name for tensor in message.output} <= set(release.triton.outputs)
            assert set(message.parameters) <= release.triton.parameters


def test_the_dry_run_of_the_large_pair_needs_no_gpu_and_no_trtllm_build(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    planned = plan("llama70b_spec", cache)
    assert [stage.stage for stage in planned][-1] == "launch"
    assert sum(file.endswith(".engine") for stage in planned for file in stage.files) == 5
    assert not Path("build/llama70b_spec").exists()


def _write_checkpoint(folder: Path, role: str, config: BuildConfig, cache: Path) -> None:
    """config.json as the conversion writes it, and empty rank files."""
    model = config.models[role]
    source = cache / "checkpoints" / model.checkpoint.replace("/", "--")
    document: dict[str, Any] = checkpoint_config(read_model_spec(source), conversion_options(model, config))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(document))
    for rank in range(document["mapping"]["world_size"]):
        (folder / f"rank{rank}.safetensors").touch()


def _portable(text: str) -> str:
    """Without the folders of this machine, which the container script mounts."""
    root = Path(__file__).resolve().parents[2]
    return text.replace(f"{Path.cwd()}/build", "BUILDS").replace(f"{root}/toolkit", "PACKAGE")
