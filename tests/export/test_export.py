"""The counterparts for vLLM and transformers: exact, complete, and honest about what they cannot say."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from trtkit.cli.main import cli
from trtkit.config.load import load_config
from trtkit.config.presets import presets
from trtkit.config.schema import BuildConfig
from trtkit.errors import InputError
from trtkit.export.assisted import export_transformers
from trtkit.export.vllm import export_vllm, vllm_command

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "engines" / "export"
EXPORTABLE = sorted(presets())
# Options of vLLM 0.33's parser (vllm serve), which every generated command was parsed with.
VLLM_OPTIONS = {
    *("--revision", "--dtype", "--quantization", "--tensor-parallel-size", "--pipeline-parallel-size"),
    *("--enable-expert-parallel", "--max-num-seqs", "--max-model-len", "--kv-cache-dtype", "--block-size"),
    *("--enable-prefix-caching", "--no-enable-prefix-caching", "--speculative-config", "--port"),
}
SPECULATIVE_KEYS = {
    *("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "revision", "quantization"),
}


def named(config: BuildConfig) -> dict[str, str]:
    return {role: model.checkpoint for role, model in config.models.items()}


def preset(name: str, *overrides: str) -> BuildConfig:
    return load_config(presets()[name], overrides)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_the_counterparts_are_golden(name: str, assert_golden: Callable[[str, Path], None]) -> None:
    config = preset(name)
    stored = {"target"} if name.endswith("_llmapi") else set()
    for counterpart in (
        export_vllm(config, checkpoints=named(config), stored_quantized=stored),
        export_transformers(config, checkpoints=named(config)),
    ):
        suffix = "py.txt" if counterpart.runtime == "transformers" else "sh"
        notes = "".join(f"# note: {note}\n" for note in counterpart.notes)
        assert_golden(notes + counterpart.text, GOLDEN / f"{name}.{counterpart.runtime}.{suffix}")


@pytest.mark.parametrize("name", EXPORTABLE)
def test_only_options_that_vllm_has_are_written(name: str) -> None:
    config = preset(name)
    command = vllm_command(config, checkpoints=named(config))
    assert {word for word in command if word.startswith("--")} <= VLLM_OPTIONS
    if "--speculative-config" in command:
        assert json.loads(command[command.index("--speculative-config") + 1]).keys() <= SPECULATIVE_KEYS


def test_the_shell_text_reads_back_as_the_command() -> None:
    config = preset("llama70b_spec")
    counterpart = export_vllm(config, checkpoints=named(config))
    assert shlex.split(counterpart.text.replace("\\\n", "")) == vllm_command(config, checkpoints=named(config))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("kv_cache.reuse=false", "--no-enable-prefix-caching"),
        ("kv_cache.dtype=auto", "--kv-cache-dtype auto"),
        ("kv_cache.block_size=64", "--block-size 64"),
        ("limits.max_batch_size=3", "--max-num-seqs 3"),
        ("limits.max_output_len=100", "--max-model-len 8292"),
        ("target.revision=v1", "--revision v1"),
        ("target.quantization=none", "--dtype bfloat16 --tensor-parallel-size"),
        ("target.pipeline_parallel=2", "--pipeline-parallel-size 2"),
        ("speculation.max_draft_len=2", '"num_speculative_tokens": 2'),
        ("serving.http_port=9000", "--port 9000"),
    ],
)
def test_values_of_the_yaml_reach_vllm(override: str, words: str) -> None:
    config = preset("llama70b_spec", override)
    assert words in " ".join(vllm_command(config, checkpoints=named(config)))


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("kv_cache.dtype=int8", "kv_cache.dtype"),
        ("target.quantization=int4_awq", "target.quantization"),
        ("draft.quantization=w4a8_awq", "draft.quantization"),
        ("draft.tensor_parallel=2", "draft.tensor_parallel"),
    ],
)
def test_what_vllm_cannot_make_is_refused(override: str, where: str) -> None:
    config = preset("llama70b_spec", override)
    with pytest.raises(InputError) as error:
        vllm_command(config, checkpoints=named(config))
    assert error.value.where == where


def test_weights_that_are_stored_quantised_are_not_quantised_again() -> None:
    config = preset("llama70b_spec")
    command = vllm_command(config, checkpoints=named(config), stored_quantized={"target", "draft"})
    assert "--quantization" not in command
    assert "quantization" not in json.loads(command[command.index("--speculative-config") + 1])


def test_a_format_that_the_checkpoint_may_have_already_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTKIT_CACHE", str(tmp_path))
    for name, noted in (("llama70b_spec_llmapi", True), ("mixtral_ep", False)):
        result = CliRunner().invoke(cli, ["export", "vllm", str(presets()[name]), "--json"])
        said = [note for note in json.loads(result.stdout)["notes"] if "target.checkpoint is not on this disk" in note]
        assert bool(said) == noted


def test_what_is_lost_is_said() -> None:
    config = preset("llama70b_spec", "attention_sinks={window_tokens: 4092}")
    said = " ".join(export_vllm(config, checkpoints=named(config)).notes)
    assert all(word in said for word in ("attention_sinks", "adaptive", "acceptance", "scales"))


def test_the_script_is_python_whatever_the_names_hold(tmp_path: Path) -> None:
    config = preset("smollm2_spec")
    odd = {"target": "a'b\"c\\d {x}", "draft": "e"}
    script = export_transformers(config, checkpoints=odd).text
    scope: dict[str, Any] = {}
    exec(compile(script.split("def load")[0].split("from transformers")[1].split("\n", 1)[1], "script", "exec"), scope)
    assert scope["TARGET"]["checkpoint"] == odd["target"]


@pytest.mark.slow
@pytest.mark.demo
def test_the_script_generates_the_targets_own_greedy_tokens(demo_pair: dict[str, Path], tmp_path: Path) -> None:
    """Really run, on the demo pair: with the draft and without, for two prompts."""
    config = preset("smollm2_spec", "target.dtype=float32", "draft.dtype=float32")
    folders = {role: str(folder) for role, folder in demo_pair.items()}
    program = tmp_path / "generate.py"
    program.write_text(export_transformers(config, checkpoints=folders).text)
    prompts = ["The capital of France is", "def add(a, b):"]
    assisted, plain = (_run(program, "--max-new-tokens", "12", *extra, *prompts) for extra in ((), ("--plain",)))
    assert [answer["token_ids"] for answer in assisted] == [answer["token_ids"] for answer in plain]
    assert all(len(answer["token_ids"]) == 12 and answer["text"] for answer in assisted)


def _run(program: Path, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-P", str(program), *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
