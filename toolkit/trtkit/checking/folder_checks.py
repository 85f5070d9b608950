"""Checks one folder: a checkpoint, an engine, a repository, a build. Knows which rules apply, not what they say."""

from collections.abc import Callable
from pathlib import Path

from trtkit.builds import Build, open_build
from trtkit.checking.config_check import check_config
from trtkit.checking.raised import finding_of
from trtkit.checking.rule import run_rules
from trtkit.checking.rules.agreement import AGREEMENT_RULES
from trtkit.checking.rules.edges import EDGE_RULES
from trtkit.checking.rules.engine import ENGINE_RULES
from trtkit.checking.rules.hf_checkpoint import HF_RULES
from trtkit.checking.rules.limits import ABSENT_FILE
from trtkit.checking.rules.llm_yaml import LLM_YAML_RULES
from trtkit.checking.rules.machine import BUILT_RULES, MACHINE_RULES
from trtkit.checking.rules.parameters import PARAMETER_RULES
from trtkit.checking.rules.repository import REPOSITORY_RULES
from trtkit.checking.rules.scales import SCALE_RULES
from trtkit.checking.rules.trtllm_checkpoint import TRTLLM_CHECKPOINT_RULES
from trtkit.checking.subjects.build import BuiltFor
from trtkit.checking.subjects.engine import read_engine_folder
from trtkit.checking.subjects.hf_checkpoint import read_hf_checkpoint
from trtkit.checking.subjects.repository import read_repository
from trtkit.checking.subjects.trtllm_checkpoint import read_trtllm_checkpoint
from trtkit.config.schema import BuildConfig
from trtkit.doctor import Machine, inspect_machine
from trtkit.errors import InputError
from trtkit.findings import Finding

FOREIGN_FORMAT = "CKPT-QUANT"
_LLM_API = "llmapi"


def check_hf_checkpoint(folder: Path) -> list[Finding]:
    """Files, headers, completeness, shapes and tokenizer of a Hugging Face checkpoint."""
    checkpoint, problems = read_hf_checkpoint(folder, converts=True)
    # A form that only the LLM API reads is no fault of the checkpoint; checking a YAML says so where it is converted.
    problems = [problem for problem in problems if problem.code != FOREIGN_FORMAT]
    findings = [*problems, *run_rules(HF_RULES, checkpoint, str(folder))]
    return [*findings, *run_rules(SCALE_RULES, checkpoint, str(folder))]


def check_trtllm_checkpoint(folder: Path) -> list[Finding]:
    """Rank files, expected tensors and KV scales of a TensorRT-LLM checkpoint."""
    try:
        checkpoint = read_trtllm_checkpoint(folder)
    except InputError as error:
        return [finding_of(error, str(folder))]
    findings = run_rules(TRTLLM_CHECKPOINT_RULES, checkpoint, str(folder))
    return [*findings, *run_rules(SCALE_RULES, checkpoint, str(folder))]


def check_engine(folder: Path) -> list[Finding]:
    """What an engine's config.json says, and its files; for a reference engine also the checkpoint it executes."""
    try:
        engine = read_engine_folder(folder)
    except InputError as error:
        return [finding_of(error, str(folder))]
    return run_rules(ENGINE_RULES, engine, str(folder))


def check_repository(folder: Path) -> list[Finding]:
    """Every config.pbtxt, every edge between models, and the engines that are on this disk."""
    repository, problems = read_repository(folder)
    rules = (*REPOSITORY_RULES, *PARAMETER_RULES, *AGREEMENT_RULES, *LLM_YAML_RULES)
    findings = [*problems, *run_rules(rules, repository, str(folder))]
    # Edges to a model whose config.pbtxt could not be read would only repeat that problem.
    findings += [] if problems else run_rules(EDGE_RULES, repository, str(folder))
    for engine in repository.engines.values():
        findings += run_rules(ENGINE_RULES, engine, str(engine.folder))
    return findings


def check_build(folder: Path) -> list[Finding]:
    """All of a build directory: configuration, checkpoints, engines, repository, and this machine."""
    try:
        build = open_whole_build(folder)
    except InputError as error:
        return [finding_of(error, str(folder)), *_parts(folder, ())]
    own = (
        _for_the_llm_api(build) if build.manifest["backend"] == _LLM_API else _parts(folder, tuple(build.config.models))
    )
    config = check_config(_as_built(build), _sources(build), where=str(folder / "manifest.json"))
    return [
        # Paths of texts started where the build ran, and the texts have done their work.
        *(finding for finding in config if finding.code != ABSENT_FILE),
        *own,
        *check_machine(inspect_machine(), build),
    ]


def check_machine(machine: Machine, build: Build | None) -> list[Finding]:
    """What is amiss with a machine, and what keeps it from running a build."""
    findings = run_rules(MACHINE_RULES, machine, "machine")
    if build is not None:
        findings += run_rules(BUILT_RULES, BuiltFor(build, machine), str(build.folder / "manifest.json"))
    return findings


def open_whole_build(folder: Path) -> Build:
    """A finished build whose manifest has what the checks read. Raises InputError BUILD-MANIFEST when it has not."""
    build = open_build(folder)
    missing = sorted({"backend", "tensorrt_llm", "inputs"} - build.manifest.keys())
    if missing:
        raise InputError(
            f"lacks {', '.join(missing)}",
            "run `trtkit build` again",
            code="BUILD-MANIFEST",
            where=str(folder / "manifest.json"),
        )
    return build


def _as_built(build: Build) -> BuildConfig:
    return build.config.model_copy(update={"backend": build.manifest["backend"]})


def _sources(build: Build) -> dict[str, Path]:
    """The source checkpoints that are still where the build found them."""
    found = {role: build.source(role) for role in build.config.models if role in build.manifest["inputs"]}
    return {role: folder for role, folder in found.items() if folder.is_dir()}


def _parts(folder: Path, roles: tuple[str, ...]) -> list[Finding]:
    """The findings of every part of a build directory; a part that is missing is one. roles: the models converted."""
    findings: list[Finding] = []
    for role in roles:
        findings += check_trtllm_checkpoint(folder / "checkpoints" / role)
        findings += check_engine(folder / "engines" / role)
    if (folder / "model_repository").is_dir():
        findings += check_repository(folder / "model_repository")
    return findings


def _for_the_llm_api(build: Build) -> list[Finding]:
    """The findings of the repository, and of the Hugging Face checkpoints that the build made, if any."""
    made = [build.folder / "checkpoints" / role for role in build.config.models]
    findings = [finding for folder in made if folder.is_dir() for finding in check_hf_checkpoint(folder)]
    return [*findings, *_parts(build.folder, ())]


FOLDER_CHECKS: dict[str, Callable[[Path], list[Finding]]] = {
    "build": check_build,
    "engine": check_engine,
    "TensorRT-LLM checkpoint": check_trtllm_checkpoint,
    "repository": check_repository,
    "checkpoint": check_hf_checkpoint,
}
