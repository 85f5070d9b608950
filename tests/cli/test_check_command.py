"""`trtkit check`, `plan` and `doctor`: exit codes, the JSON contract, speed, and no heavy import."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from real_models import write_real_model
from tiny import tiny_checkpoint
from tiny_build import tiny_build
from trtkit.cli.main import cli

LLAMA_70B, LLAMA_1B = "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
PAIR: dict[str, Any] = {
    "name": "pair",
    "backend": "engine",
    "gpu": {"name": "h100", "count": 4},
    "target": {"checkpoint": LLAMA_70B, "tensor_parallel": 4},
    "draft": {"checkpoint": LLAMA_1B},
    "speculation": {"kind": "draft_target", "max_draft_len": 5},
    "limits": {"max_batch_size": 4, "max_input_len": 1024, "max_output_len": 512},
}
HEAVY = {"torch", "transformers", "tensorrt_llm", "tritonclient", "tokenizers", "matplotlib"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A YAML whose checkpoints lie in trtkit's cache."""
    monkeypatch.setenv("TRTKIT_CACHE", str(tmp_path))
    for name in (LLAMA_70B, LLAMA_1B):
        write_real_model(name, tmp_path)
    return write_yaml(tmp_path, PAIR)


def write_yaml(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_a_sound_yaml_exits_with_0(pair: Path) -> None:
    result = run("check", pair)
    assert result.exit_code == 0, result.output
    assert "LIMIT-WRITTEN" in result.stdout


def test_an_error_exits_with_2_and_names_file_and_key(pair: Path) -> None:
    result = run("check", pair, "--set", "kv_cache.dtype=fp8")
    assert result.exit_code == 2
    assert "KV-FP8-FMHA" in result.stdout
    assert "kv_cache.dtype" in result.stdout


def test_json_is_the_contract(pair: Path) -> None:
    result = run("check", pair, "--set", "kv_cache.dtype=fp8", "--json")
    record = json.loads(result.stdout)
    assert record["schema"] == "trtkit.check/1"
    assert record["ok"] is False
    assert set(record["findings"][0]) == {"code", "severity", "where", "cause", "fix"}
    assert record["findings"][0]["severity"] == "error"


def test_warnings_fail_only_when_strict(pair: Path) -> None:
    arguments = ("check", pair, "--set", "draft.tensor_parallel=4")
    assert run(*arguments).exit_code == 0
    assert run(*arguments, "--strict").exit_code == 2


def test_an_ignored_finding_is_recorded_and_does_not_fail(pair: Path) -> None:
    result = run("check", pair, "--set", "kv_cache.dtype=fp8", "--ignore", "KV-FP8-FMHA", "--json")
    record = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [finding["code"] for finding in record["ignored"]] == ["KV-FP8-FMHA"]


def test_ignoring_an_unknown_code_is_an_error(pair: Path) -> None:
    result = run("check", pair, "--ignore", "KV-FP8-FHMA")
    assert result.exit_code == 2
    assert "no finding has this code" in result.stderr


def test_a_misspelt_key_brings_the_right_one(pair: Path) -> None:
    result = run("check", pair, "--set", "speculation.max_drat_len=5")
    assert result.exit_code == 2
    assert "did you mean max_draft_len?" in result.stderr


def test_a_checkpoint_that_is_a_file_is_one_finding(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair.parent)
    (pair.parent / "models").mkdir()
    Path("models/model.gguf").write_bytes(b"GGUF")
    result = run("check", pair, "--set", "target.checkpoint=models/model.gguf", "--json")
    errors = [finding for finding in json.loads(result.stdout)["findings"] if finding["severity"] == "error"]
    codes = [finding["code"] for finding in errors if "CKPT-MISSING" != finding["code"]]
    assert result.exit_code == 2 and codes == ["CKPT-FOLDER"]
    assert errors[-1]["where"] == f"{pair}:target.checkpoint"


@pytest.mark.parametrize(
    ("override", "code"),
    [("speculation.max_drat_len=5", "CONFIG"), ("speculation", "CONFIG-SET"), ("gpu.count=0", "CONFIG")],
)
def test_a_yaml_that_is_no_config_is_a_finding_for_programs(override: str, code: str, pair: Path) -> None:
    result = run("check", pair, "--set", override, "--json", "--ignore", "CONFIG")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["ok"] is False and [finding["code"] for finding in document["findings"]] == [code]
    assert document["findings"][0]["where"] == str(pair) and code in result.stderr


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (lambda folder: tiny_checkpoint(folder / "hf", tokenizer=True), "checkpoint"),
        (lambda folder: tiny_build(folder) / "checkpoints" / "target", "TensorRT-LLM checkpoint"),
        (lambda folder: tiny_build(folder) / "engines" / "target", "engine"),
        (lambda folder: tiny_build(folder) / "model_repository", "repository"),
        (lambda folder: tiny_build(folder), "build"),
    ],
    ids=["checkpoint", "TensorRT-LLM checkpoint", "engine", "repository", "build"],
)
def test_each_kind_of_target_is_recognised(prepare: Any, kind: str, tmp_path: Path) -> None:
    record = json.loads(run("check", prepare(tmp_path), "--json").stdout)
    assert record["target"] == kind


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_target_that_is_none_exits_with_2(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("check", tmp_path / name)
    assert result.exit_code == 2
    assert "CHECK-TARGET" in result.stderr


@pytest.mark.parametrize("name", ["checkpoints/.target.partial", "engines/target"])
def test_a_build_that_did_not_finish_is_recognised_as_one(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir(parents=True)
    result = CliRunner().invoke(cli, ["check", str(tmp_path), "--json"])
    assert result.exit_code == 2
    assert [finding["code"] for finding in json.loads(result.output)["findings"]] == ["BUILD-MISSING"]


def test_plan_prints_the_contract(pair: Path) -> None:
    record = json.loads(run("plan", pair, "--json").stdout)
    assert record["schema"] == "trtkit.plan/1"
    assert record["target"]["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    assert record["max_sequences"] > 0


def test_plan_fails_when_nothing_fits(pair: Path) -> None:
    result = run("plan", pair, "--set", "target.tensor_parallel=1", "--set", "gpu.count=1")
    assert result.exit_code == 2
    assert "too little" in result.stdout


def test_plan_needs_a_known_gpu(pair: Path) -> None:
    result = run("plan", pair, "--gpu", "h1000")
    assert result.exit_code == 2
    assert "GPU-UNKNOWN" in result.stderr


def test_plan_says_which_checkpoint_is_not_there(pair: Path) -> None:
    result = run("plan", pair, "--set", "draft.checkpoint=org/elsewhere")
    assert result.exit_code == 2
    assert "PLAN-CHECKPOINT" in result.stderr


def test_plan_takes_a_measured_acceptance(pair: Path) -> None:
    record = json.loads(run("plan", pair, "--acceptance", "0.5", "--json").stdout)
    assert 0.6 < record["assumed_acceptance_rate"] < 0.9


def test_plan_draws_a_picture(pair: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run("plan", pair, "--plot", tmp_path / "plots" / "plan.svg")
    assert result.exit_code == 0, result.output
    assert "<svg" in (tmp_path / "plots" / "plan.svg").read_text()


def test_plan_says_of_a_draft_that_never_pays_only_that(pair: Path) -> None:
    result = run("plan", pair, "--set", f"draft.checkpoint={LLAMA_70B}", "--set", "draft.tensor_parallel=4")
    assert "K = 5 never pays" in result.stdout and "recommended K at acceptance 0.70: off" in result.stdout
    assert "in flight" not in result.stdout, "no load makes it pay"
    assert "K = 5 pays from acceptance 0." in run("plan", pair).stdout


def test_plan_lists_the_catalogue() -> None:
    result = run("plan", "--list-gpus")
    assert result.exit_code == 0
    assert "h100-sxm-80gb" in result.stdout


def test_doctor_reports_this_machine() -> None:
    record = json.loads(run("doctor", "--json").stdout)
    assert record["allows"].keys() == {"reference", "serve", "engine", "llmapi"}
    assert run("doctor").exit_code == 0


def test_doctor_refuses_a_build_for_another_machine(tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    manifest = {
        "schema": "trtkit.manifest/1",
        "backend": "engine",
        "tensorrt_llm": "1.2.1",
        "inputs": {},
        "config": PAIR,
    }
    (build / "manifest.json").write_text(json.dumps(manifest))
    result = run("doctor", build, "--json")
    if json.loads(result.stdout)["allows"]["engine"]["possible"]:
        pytest.skip("this machine runs engines")
    assert result.exit_code == 3
    assert "RUN-RUNTIME" in {finding["code"] for finding in json.loads(result.stdout)["findings"]}


def write_large_tokenizer(folder: Path, *, renamed: str, pairs: bool) -> None:
    """A tokenizer of Llama 3's size: 128,000 pieces, 280,147 merges, 256 special tokens, of which one is `renamed`.

    pairs: merges as lists of two, as newer releases of the tokenizers library write them, instead of one text.
    """
    pieces = [f"\u0120piece{number:07}" for number in range(128000)]
    merges = [(pieces[n % 128000], pieces[(7 * n + 1) % 128000]) for n in range(280147)]
    special = [renamed, *(f"<|reserved_special_token_{number}|>" for number in range(255))]
    document = {
        "version": "1.0",
        "added_tokens": [{"id": 128000 + n, "content": text, "special": True} for n, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": merges if pairs else [" ".join(pair) for pair in merges],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=2))


@pytest.mark.parametrize("command", ["check", "plan"])
def test_under_a_second_of_cpu_time_and_without_heavy_imports(command: str, pair: Path, tmp_path: Path) -> None:
    """With two tokenizers of Llama 3's size that differ in everything that makes a comparison dear."""
    for name, renamed, pairs in ((LLAMA_70B, "<|a|>", False), (LLAMA_1B, "<|b|>", True)):
        folder = tmp_path / "checkpoints" / name.replace("/", "--")
        write_large_tokenizer(folder, renamed=renamed, pairs=pairs)
    probe = (
        "import sys, runpy; sys.argv = ['trtkit', *sys.argv[1:]]\n"
        "try: runpy.run_module('trtkit', run_name='__main__')\n"
        f"finally: print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    )
    spent = []
    for _ in range(3):  # the least of three: a busy machine makes the same work dearer
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-P", "-c", probe, command, str(pair)], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert command == "plan" or "PAIR-SPECIAL" in done.stdout
        assert done.stderr.splitlines()[-1] == "[]"
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 1.0
