"""No verdict contradicts another: what `check` lets pass is planned, built as asked, and passes `check` once built.

Drawn YAMLs for engines of known models; the builder is the contract checker of the release.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contract_trtllm_build
import pytest
from known_models import fill_cache
from trtkit.checking import check_config
from trtkit.checking.folder_checks import check_repository
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.config.load import parse_config
from trtkit.config.schema import BuildConfig, Model
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.engines.expectation import compare_fields, expected_fields
from trtkit.engines.release import find_release, releases
from trtkit.engines.requested_spec import engine_spec
from trtkit.pipeline.dry_run import PlannedStage, dry_run
from trtkit.pipeline.request import gpu_sm
from trtkit.pipeline.run import BuildOptions
from trtkit.pipeline.stages import conversion_options
from trtkit.planning.request import PlanRequest, plan_config

LLAMA, QWEN, MIXTRAL = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-72B-Instruct",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
)
DRAFTS = {LLAMA: "meta-llama/Llama-3.2-1B-Instruct", QWEN: "Qwen/Qwen2.5-1.5B-Instruct"}
FORMATS = ["none", "none", "fp8", "fp8", "fp8_rowwise", "int8_weight_only", "int4_weight_only", *MODELOPT_QUANTIZATIONS]
ALGORITHMS = dict(zip(MODELOPT_QUANTIZATIONS, ("W4A16_AWQ", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL", "NVFP4"), strict=True))
VERSIONS = [release.version for release in releases() if release.engine_flow] + ["1.2", "1.0.3.2510"]
NUM_SEEDS, NUM_DRAWN = 4, 60


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_cache(tmp_path_factory.mktemp("cache"))


def drawn(seed: int) -> Iterator[BuildConfig]:
    draw = random.Random(seed).choice
    for _ in range(NUM_DRAWN):
        target = draw([LLAMA, QWEN, MIXTRAL])
        quantization = draw(FORMATS)
        document: dict[str, Any] = {
            "name": "drawn",
            "backend": "engine",
            "tensorrt_llm": draw(VERSIONS),
            "gpu": draw([{"name": draw(["h100", "l40s", "a100", "b200"]), "count": draw([4, 8])}, None]),
            "target": {"checkpoint": target, "quantization": quantization, "tensor_parallel": draw([1, 2, 4])},
            "kv_cache": {"dtype": draw(["auto", "auto", "fp8", "int8"]), "block_size": draw([32, 64])},
            "limits": {"max_batch_size": draw([1, 16]), "max_input_len": draw([512, 8192]), "max_output_len": 1024},
        }
        if target in DRAFTS and draw([True, False]):
            document["draft"] = {"checkpoint": DRAFTS[target], "quantization": draw([quantization, "none"])}
            document["speculation"] = {"kind": "draft_target", "acceptance": draw(["token", "logits"])}
        elif draw([True, False]):
            document["kv_cache"]["reuse"] = False
            document["attention_sinks"] = draw([None, {"window_tokens": 508, "strategy": draw(["engine", "rolling"])}])
        yield parse_config(document, where="drawn")


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_what_the_check_lets_pass_is_built_as_asked(
    seed: int, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_passed = 0
    for number, config in enumerate(drawn(seed)):
        folders = {role: source_of(model, cache) for role, model in config.models.items()}
        findings = check_config(config, folders, where="drawn")
        if {finding.code for finding in findings if finding.severity == "error"} <= {"CKPT-MISSING"}:
            num_passed += 1
            plan_config(config, PlanRequest(cache=cache))
            monkeypatch.chdir(tmp_path)
            build = tmp_path / str(number)
            planned = dry_run(config, BuildOptions(cache=cache, where="drawn", out=build))
            for role in config.models:
                assert build_engine(build, role, config, planned, cache) == [], config
            assert errors_of(build, planned, folders["target"]) == [], config
    assert num_passed > NUM_DRAWN // 10, "most YAMLs are impossible, not all"


def source_of(model: Model, cache: Path) -> Path:
    return cache / "checkpoints" / model.checkpoint.replace("/", "--")


def build_engine(build: Path, role: str, config: BuildConfig, planned: list[PlannedStage], cache: Path) -> list[Any]:
    """Run the planned command on a checkpoint without weights; the differences between asked and built."""
    model, release = config.models[role], find_release(config.tensorrt_llm)
    assert release is not None
    checkpoint = build / "checkpoints" / role
    checkpoint.mkdir(parents=True)
    document = checkpoint_document(model, config, cache)
    (checkpoint / "config.json").write_text(json.dumps(document))
    for rank in range(document["mapping"]["world_size"]):
        (checkpoint / f"rank{rank}.safetensors").touch()
    command = next(stage.command for stage in planned if stage.stage == f"engine {role}")
    below = [str(build / word) if word.startswith(("checkpoints/", "engines/")) else word for word in command]
    assert contract_trtllm_build.main(below[1:], config.tensorrt_llm, gpu_sm(config) or 90, 8) == 0, config
    built = json.loads((build / "engines" / role / "config.json").read_text())
    return compare_fields(expected_fields(engine_spec(role, config, gpu_sm(config)), release.version, document), built)


def checkpoint_document(model: Model, config: BuildConfig, cache: Path) -> dict[str, Any]:
    """config.json as the conversion writes it, or as modelopt does for what it quantises."""
    spec = read_model_spec(source_of(model, cache))
    algorithm = ALGORITHMS.get(model.quantization)
    plain = model.model_copy(update={"quantization": "none"}) if algorithm else model
    document: dict[str, Any] = checkpoint_config(spec, conversion_options(plain, config))
    if algorithm:
        document["quantization"]["quant_algo"] = algorithm
    return document


def errors_of(build: Path, planned: list[PlannedStage], tokenizer: Path) -> list[str]:
    """What `check` says about the repository and the engines."""
    texts = next(stage.texts for stage in planned if stage.stage == "repository")
    for name, text in texts.items():
        (build / "model_repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (build / "model_repository" / name).write_text(text)
    shutil.copytree(tokenizer, build / "tokenizer")
    findings = check_repository(build / "model_repository")
    return [f"{finding.code}: {finding.cause}" for finding in findings if finding.severity != "note"]
