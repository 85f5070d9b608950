"""Every rule about a Triton repository, its edges included, has a case that triggers it; trtkit's own triggers none."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_build import tiny_build
from trtkit.checking.folder_checks import check_repository
from trtkit.checking.rules.agreement import AGREEMENT_RULES
from trtkit.checking.rules.edges import EDGE_RULES
from trtkit.checking.rules.parameters import PARAMETER_RULES
from trtkit.checking.rules.repository import REPOSITORY_RULES

Edit = Callable[[Path], None]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build directory as trtkit writes it."""
    return tiny_build(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def build(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "build"))


def edit_text(model: str, pattern: str, text: str, count: int = 1) -> Edit:
    """Replace a regular expression in a model's config.pbtxt; it must be there."""

    def edit(build: Path) -> None:
        path = build / "model_repository" / model / "config.pbtxt"
        changed, hits = re.subn(pattern, text, path.read_text(), count=count, flags=re.S)
        assert hits, f"{pattern} is not in {path}"
        path.write_text(changed)

    return edit


def append(model: str, text: str) -> Edit:
    def edit(build: Path) -> None:
        path = build / "model_repository" / model / "config.pbtxt"
        path.write_text(path.read_text() + text)

    return edit


def parameter(model: str, key: str, value: str) -> Edit:
    """Set a parameter, whether it is there or not."""

    def edit(build: Path) -> None:
        path = build / "model_repository" / model / "config.pbtxt"
        entry = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        rest = re.sub(rf'parameters \{{\s*key: "{key}"\s*value \{{[^}}]*\}}\s*\}}\s*', "", path.read_text())
        path.write_text(rest + entry)

    return edit


def unset(model: str, key: str) -> Edit:
    return parameter(model, key, "")


def engine(role: str, **values: object) -> Edit:
    """Change the build_config of an engine; plugin options by their names."""

    def edit(build: Path) -> None:
        path = build / "engines" / role / "config.json"
        document = json.loads(path.read_text())
        for key, value in values.items():
            plugin = key in document["build_config"]["plugin_config"]
            (document["build_config"]["plugin_config"] if plugin else document["build_config"])[key] = value
        path.write_text(json.dumps(document))

    return edit


def version(text: str) -> Edit:
    def edit(build: Path) -> None:
        path = build / "engines" / "target" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": text}))

    return edit


def logits_dtype(name: str) -> Edit:
    def edit(build: Path) -> None:
        path = build / "engines" / "target" / "config.json"
        document = json.loads(path.read_text())
        document["pretrained_config"]["logits_dtype"] = name
        path.write_text(json.dumps(document))

    return edit


def streamingllm(build: Path) -> None:
    path = build / "engines" / "target" / "config.json"
    document = json.loads(path.read_text())
    document["build_config"]["plugin_config"]["streamingllm"] = True
    path.write_text(json.dumps(document))


def as_engine(build: Path) -> None:
    """Make both engines look like TensorRT-LLM's own."""
    for role in ("target", "draft"):
        path = build / "engines" / role / "config.json"
        document = json.loads(path.read_text())
        del document["trtkit_reference"]
        document["build_config"]["speculative_decoding_mode"] = 2
        path.write_text(json.dumps(document))
        (build / "engines" / role / "rank0.engine").touch()


def remove(*path: str) -> Edit:
    def edit(build: Path) -> None:
        target = build.joinpath(*path)
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return edit


def add_input(model: str, name: str, dtype: str = "TYPE_INT32", optional: bool = False) -> Edit:
    flag = " optional: true" if optional else ""
    return append(model, f'input {{ name: "{name}" data_type: {dtype} dims: -1{flag} }}\n')


def all_of(*edits: Edit) -> Edit:
    def apply(build: Path) -> None:
        for edit in edits:
            edit(build)

    return apply


LLM, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"
FRACTION = "kv_cache_free_gpu_mem_fraction"
# code -> (edit that triggers it, edit that comes close)
CASES: dict[str, tuple[Edit, Edit]] = {
    "REPO-NAME": (edit_text(DRAFT, 'name: "tensorrt_llm_draft"', 'name: "tensorrt_llm"'), parameter(DRAFT, "x", "y")),
    "REPO-TWICE": (
        append("postprocessing", 'output { name: "OUTPUT" data_type: TYPE_INT32 dims: -1 }\n'),
        append("postprocessing", 'output { name: "OUTPUT" data_type: TYPE_STRING dims: -1 }\n'),
    ),
    "REPO-VERSION": (remove("model_repository", LLM, "1"), remove("model_repository", LLM, "1", ".keep")),
    "REPO-PROGRAM": (
        remove("model_repository", "preprocessing", "1", "model.py"),
        remove("model_repository", LLM, "1", ".keep"),
    ),
    "REPO-DECOUPLED": (
        edit_text(BLS, "decoupled: true", "decoupled: false"),
        all_of(*(edit_text(model, "decoupled: true", "decoupled: false") for model in (LLM, DRAFT, BLS))),
    ),
    "REPO-ORDER": (
        edit_text("postprocessing", "count: 1", "count: 4"),
        all_of(
            edit_text("postprocessing", "count: 1", "count: 4"),
            append("postprocessing", "dynamic_batching { preserve_ordering: true }\n"),
        ),
    ),
    "REPO-PATH": (parameter(LLM, "gpt_model_path", "engines/gone"), parameter(LLM, "gpt_model_path", "engines/target")),
    "REPO-FOREIGN-PATH": (
        parameter(LLM, "gpt_model_path", "/nowhere/engines/target"),
        parameter(LLM, "gpt_model_path", "engines/target"),
    ),
    "REPO-NO-ENGINE": (unset(LLM, "gpt_model_path"), parameter(LLM, "gpt_model_path", "engines/target")),
    "REPO-TOKENIZER": (
        all_of(remove("tokenizer", "tokenizer.json"), remove("tokenizer", "tokenizer_config.json")),
        remove("tokenizer", "tokenizer_config.json"),
    ),
    "KV-REUSE": (
        engine("target", use_paged_context_fmha=False),
        all_of(
            engine("target", use_paged_context_fmha=False),
            parameter(LLM, "enable_kv_cache_reuse", "false"),
        ),
    ),
    "REPO-SPEC-REUSE": (
        all_of(unset(LLM, "enable_kv_cache_reuse"), version("0.18.0")),
        all_of(unset(LLM, "enable_kv_cache_reuse"), version("0.19.0")),
    ),
    "SPEC-K": (parameter(BLS, "max_draft_len", "5"), parameter(BLS, "max_draft_len", "4")),
    "REPO-NO-DRAFTS": (
        all_of(engine("target", max_draft_len=0), unset(BLS, "max_draft_len")),
        all_of(engine("target", max_draft_len=0), remove("model_repository", DRAFT), unset(BLS, "max_draft_len")),
    ),
    "REPO-VALUE": (parameter(LLM, "sink_token_length", "0"), parameter(LLM, "sink_token_length", "4")),
    "REPO-POLICY": (
        parameter(LLM, "batch_scheduler_policy", "fair"),
        parameter(LLM, "batch_scheduler_policy", "max_utilization"),
    ),
    "REPO-EXCLUDED": (
        parameter(LLM, "exclude_input_in_output", "true"),
        parameter(LLM, "exclude_input_in_output", "false"),
    ),
    "REPO-DEVICES": (
        all_of(as_engine, parameter(LLM, "gpu_device_ids", "0,1")),
        all_of(as_engine, parameter(LLM, "gpu_device_ids", "3")),
    ),
    "REPO-FRACTION": (
        all_of(as_engine, parameter(LLM, FRACTION, "0.9"), parameter(DRAFT, FRACTION, "0.9")),
        all_of(
            as_engine,
            parameter(LLM, FRACTION, "0.9"),
            parameter(DRAFT, FRACTION, "0.9"),
            parameter(LLM, "gpu_device_ids", "0,1"),
            parameter(DRAFT, "gpu_device_ids", "2"),
        ),
    ),
    "REPO-RELEASES": (all_of(as_engine, version("1.0.0")), version("1.0.0")),
    "REPO-SINKS": (
        all_of(as_engine, parameter(LLM, "sink_token_length", "4")),
        all_of(as_engine, parameter(LLM, "sink_token_length", "4"), streamingllm),
    ),
    "REPO-WINDOW-REUSE": (
        all_of(as_engine, version("0.21.0"), parameter(LLM, "max_attention_window_size", "100,160")),
        all_of(as_engine, version("1.2.1"), parameter(LLM, "max_attention_window_size", "100,160")),
    ),
    "REPO-BEAM": (
        all_of(as_engine, parameter(LLM, "max_beam_width", "4")),
        all_of(as_engine, parameter(LLM, "max_beam_width", "4"), engine("target", max_beam_width=4)),
    ),
    "REPO-VOCAB": (parameter("preprocessing", "vocab_size", "300"), parameter("preprocessing", "vocab_size", "320")),
    "REPO-LOGITS": (
        all_of(engine("target", gather_generation_logits=True), logits_dtype("float16")),
        logits_dtype("float16"),
    ),
    "EDGE-MODEL": (
        edit_text("ensemble", 'model_name: "postprocessing"', 'model_name: "post"'),
        edit_text("ensemble", 'model_name: "postprocessing"', 'model_name: "postprocessing"'),
    ),
    "EDGE-TENSOR": (edit_text("ensemble", 'key: "TOKENS_BATCH"', 'key: "TOKENS"'), parameter("ensemble", "x", "y")),
    "EDGE-UNMAPPED": (add_input("postprocessing", "CUM"), add_input("postprocessing", "CUM", optional=True)),
    "EDGE-SOURCE": (
        edit_text("ensemble", '(key: "TOKENS_BATCH"\\s*value: )"[^"]*"', r'\1"_nothing"'),
        parameter("ensemble", "x", "y"),
    ),
    "EDGE-UNUSED": (add_input("ensemble", "spare", optional=True), add_input("preprocessing", "spare", optional=True)),
    "EDGE-TYPE": (
        edit_text("postprocessing", '(name: "TOKENS_BATCH"\\s*data_type: )TYPE_INT32', r"\1TYPE_INT64"),
        edit_text("postprocessing", '(name: "TOKENS_BATCH"\\s*data_type: )TYPE_INT32', r"\1TYPE_INT32"),
    ),
    "EDGE-OPTIONAL": (
        edit_text("ensemble", '(name: "max_tokens"\\s*data_type: TYPE_INT32\\s*dims: .1.)', r"\1 optional: true"),
        edit_text(
            "preprocessing", '(name: "REQUEST_OUTPUT_LEN"\\s*data_type: TYPE_INT32\\s*dims: .1.)', r"\1 optional: true"
        ),
    ),
    "EDGE-BLS": (add_input("postprocessing", "CUM"), add_input("postprocessing", "CUM", optional=True)),
    "EDGE-DRAFT": (
        edit_text(LLM, 'name: "draft_input_ids"', 'name: "drafts"'),
        edit_text(DRAFT, 'name: "draft_input_ids"', 'name: "drafts"'),
    ),
}


def codes(build: Path) -> set[str]:
    return {finding.code for finding in check_repository(build / "model_repository")}


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in (*REPOSITORY_RULES, *PARAMETER_RULES, *AGREEMENT_RULES, *EDGE_RULES)} == set(CASES)


def test_the_repository_trtkit_writes_gives_no_finding(build: Path) -> None:
    assert check_repository(build / "model_repository") == []


@pytest.mark.parametrize("code", CASES)
def test_a_rule_triggers_on_its_case(code: str, build: Path) -> None:
    CASES[code][0](build)
    assert code in codes(build)


@pytest.mark.parametrize("code", CASES)
def test_a_rule_stays_silent_when_it_only_comes_close(code: str, build: Path) -> None:
    CASES[code][1](build)
    assert code not in codes(build)


@pytest.mark.parametrize(("written", "refused"), [("", True), ("${batching_strategy}", True), ("V1", False)])
def test_the_batching_strategy_is_mandatory(written: str, refused: bool, build: Path) -> None:
    parameter(LLM, "gpt_model_type", written)(build)
    assert ("REPO-VALUE" in codes(build)) == refused


def test_a_placeholder_is_found_with_its_line(build: Path) -> None:
    path = build / "model_repository" / LLM / "config.pbtxt"
    path.write_text(path.read_text().replace("data_type: TYPE_FP32", "data_type: ${logits_datatype}", 1))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if "${" in text)
    (finding,) = [f for f in check_repository(build / "model_repository") if f.code == "PBTXT-PLACEHOLDER"]
    assert finding.where == f"{path}:{line}"


def test_an_unknown_field_is_found_with_its_place(build: Path) -> None:
    append(LLM, "colour: 1\n")(build)
    (finding,) = [f for f in check_repository(build / "model_repository") if f.code == "PBTXT-PARSE"]
    assert "colour" in finding.cause


@pytest.mark.parametrize(
    ("ids", "refused"), [("0;1", False), ("0;0", True), ("0,1;2,3", True), ("gpu0", True), ("", False)]
)
def test_two_instances_of_one_rank_need_two_gpus(ids: str, refused: bool, build: Path) -> None:
    all_of(as_engine, parameter(LLM, "gpu_device_ids", ids))(build)
    assert ("REPO-DEVICES" in codes(build)) == refused


def test_fractions_above_the_whole_are_fine_where_tokens_are_limited(build: Path) -> None:
    CASES["REPO-FRACTION"][0](build)
    for model in (LLM, DRAFT):
        parameter(model, "max_tokens_in_paged_kv_cache", "4096")(build)
    assert "REPO-FRACTION" not in codes(build)


@pytest.mark.parametrize(
    ("windows", "reuse", "warned"), [("160", "true", False), ("100", "true", True), ("100", "false", False)]
)
def test_a_window_matters_where_it_is_short_and_blocks_are_reused(
    windows: str, reuse: str, warned: bool, build: Path
) -> None:
    all_of(as_engine, version("0.21.0"), parameter(LLM, "max_attention_window_size", windows))(build)
    parameter(LLM, "enable_kv_cache_reuse", reuse)(build)
    assert ("REPO-WINDOW-REUSE" in codes(build)) == warned


def test_a_target_is_not_told_to_switch_off_the_reuse_it_needs(build: Path) -> None:
    CASES["REPO-WINDOW-REUSE"][0](build)
    (finding,) = [f for f in check_repository(build / "model_repository") if f.code == "REPO-WINDOW-REUSE"]
    assert finding.fix == "build for sequences within 100 tokens"


def test_reuse_against_the_engine_names_both_files(build: Path) -> None:
    CASES["KV-REUSE"][0](build)
    (finding,) = [f for f in check_repository(build / "model_repository") if f.code == "KV-REUSE"]
    assert finding.where.startswith(str(build / "model_repository")) and "enable_kv_cache_reuse" in finding.where
    assert str(build / "engines" / "target" / "config.json") in finding.cause
