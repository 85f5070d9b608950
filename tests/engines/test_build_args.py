"""The trtllm-build command of every release: golden, accepted by the contract checker, and without a dead option."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from contract_trtllm_build import parser_of
from trtkit.engines.build_args import BuildPaths, build_command
from trtkit.engines.release import Release, find_release, releases
from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "engines" / "commands"
PATHS = BuildPaths("checkpoints/target", "engines/target", "timing.cache")
WITH_ENGINES = [release for release in releases() if release.build]
PLAIN = EngineSpec(max_batch_size=8, max_input_len=4096, max_seq_len=5120)
SPECS = {
    "bfloat16": PLAIN,
    "target of a pair, FP8 weights and KV": dataclasses.replace(
        PLAIN, quantization="fp8", kv_dtype="fp8", max_draft_len=5, speculates=True, sm=90
    ),
    "draft of the same pair": dataclasses.replace(PLAIN, quantization="fp8", kv_dtype="fp8", speculates=True, sm=90),
    "target that verifies by logits": dataclasses.replace(
        PLAIN, max_draft_len=5, speculates=True, generation_logits=True
    ),
    "INT8 weights and KV, no reuse": dataclasses.replace(
        PLAIN, quantization="int8_weight_only", kv_dtype="int8", reuse=False
    ),
    "NVFP4 on SM 100": dataclasses.replace(PLAIN, quantization="nvfp4", kv_dtype="fp8", sm=100),
    "engine sinks": dataclasses.replace(PLAIN, attention_sinks=True, reuse=False),
}
OTHER_VALUE = {
    "max_batch_size": 16,
    "max_input_len": 2048,
    "max_seq_len": 8192,
    "max_draft_len": 5,
    "block_size": 64,
    "kv_dtype": "int8",
    "quantization": "fp8",
    "reuse": False,
    "attention_sinks": True,
    "generation_logits": True,
}


def readable(command: list[str]) -> str:
    """One option per line, with its value."""
    lines: list[str] = []
    for word in command:
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return "\n  ".join(lines)


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_the_commands_are_the_golden_ones(release: Release, assert_golden: Callable[[str, Path], None]) -> None:
    cases = {name: spec for name, spec in SPECS.items() if release.sinks or not spec.attention_sinks}
    text = "\n\n".join(f"# {name}\n{readable(build_command(spec, release, PATHS, 4))}" for name, spec in cases.items())
    assert_golden(text + "\n", GOLDEN / f"{release.version}.txt")


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
@pytest.mark.parametrize("name", SPECS)
def test_the_releases_own_parser_accepts_every_command(name: str, release: Release) -> None:
    assert release.build is not None
    parsed = parser_of(release.build).parse_args(build_command(SPECS[name], release, PATHS)[1:])
    assert (parsed.checkpoint_dir, parsed.output_dir) == (PATHS.checkpoint, PATHS.out)


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_no_plugin_option_is_left_to_a_default(release: Release) -> None:
    assert release.build is not None
    command = build_command(PLAIN, release, PATHS)
    assert {f"--{name}" for name in release.build.plugins} <= set(command)


def test_every_field_of_the_spec_changes_the_command_or_what_it_must_hold() -> None:
    indirect = {"speculates", "sm"}  # tested below: they act on long sequences and on old GPUs
    assert OTHER_VALUE.keys() | indirect == {f.name for f in dataclasses.fields(EngineSpec)}
    release = find_release("1.2.1")
    assert release is not None
    default = build_command(PLAIN, release, PATHS)
    for name, value in OTHER_VALUE.items():
        assert build_command(dataclasses.replace(PLAIN, **{name: value}), release, PATHS) != default, name


def test_a_pair_must_take_a_whole_sequence_as_one_prompt() -> None:
    alone = dataclasses.replace(PLAIN, max_input_len=8192, max_seq_len=10240)
    assert alone.max_num_tokens == 8192
    assert dataclasses.replace(alone, speculates=True).max_num_tokens == 10240
    assert dataclasses.replace(alone, speculates=True, max_draft_len=5).max_num_tokens == 10240


def test_full_drafts_of_all_sequences_fit_one_step() -> None:
    crowded = EngineSpec(max_batch_size=2048, max_input_len=128, max_seq_len=256, max_draft_len=5, speculates=True)
    assert crowded.max_num_tokens == 2048 * 6


def test_no_step_holds_more_than_all_sequences_together() -> None:
    small = EngineSpec(max_batch_size=2, max_input_len=128, max_seq_len=256)
    assert small.max_num_tokens == 512
    assert dataclasses.replace(small, max_batch_size=1, max_seq_len=16, max_input_len=8).max_num_tokens == 32, "a block"


@pytest.mark.parametrize(
    ("changes", "paged", "fp8"),
    [
        ({}, True, False),
        ({"kv_dtype": "fp8", "quantization": "fp8", "sm": 90}, True, True),
        ({"kv_dtype": "fp8", "quantization": "fp8", "sm": 80}, False, False),
        ({"kv_dtype": "fp8", "quantization": "none"}, False, False),
        ({"kv_dtype": "fp8", "quantization": "w4a8_awq"}, True, True),
        ({"kv_dtype": "int8"}, False, False),
        ({"quantization": "fp8"}, True, False),
        ({"attention_sinks": True}, False, False),
        ({"attention_sinks": True, "kv_dtype": "fp8", "quantization": "fp8"}, False, True),
        ({"reuse": False}, False, False),
    ],
)
def test_context_attention_is_asked_for_only_where_the_builder_grants_it(
    changes: dict[str, object], paged: bool, fp8: bool
) -> None:
    spec = dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]
    assert (spec.paged_context_fmha, spec.fp8_context_fmha) == (paged, fp8)


def test_a_release_without_the_engine_flow_is_refused() -> None:
    release = find_release("1.4.0rc1")
    assert release is not None
    with pytest.raises(InputError, match="no trtllm-build"):
        build_command(PLAIN, release, PATHS)
