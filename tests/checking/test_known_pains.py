"""What users of this field suffered from, case by case, with exactly the outcome each must have: its set of errors.

Every case leaves nothing but the named errors; what they must say stands in the tests below the table.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployments import LLAMA_70B, WORDS, Change, deployment_of
from machines import H100, L40S, gpu_box
from scripted_llm import END, ScriptedLlm
from tiny import safetensors_bytes, tiny_checkpoint, tiny_tokenizer, write_json
from tiny_build import tiny_build, tiny_config
from trtkit.builds import SCHEMA, open_build
from trtkit.checking.folder_checks import check_hf_checkpoint, check_machine, check_repository, check_trtllm_checkpoint
from trtkit.checking.rule import run_rules
from trtkit.checking.rules import CONFIG_RULES
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.draft_length import FixedDraftLength
from trtkit.errors import ConfigError
from trtkit.findings import Finding
from trtkit.serving.draft_target import DraftTargetRun, Generation
from trtkit.serving.text import TextTokenizer

Case = Callable[[Path], Iterable[Finding]]
QWEN = {"target_family": "qwen2", "draft_family": "qwen2"}
SIZES = {"target": {"vocab_size": 152064}, "draft": {"vocab_size": 151936}}
LARGER_DRAFT = {"target": {"vocab_size": 151936}, "draft": {"vocab_size": 152064}}
SINKS = {"sink_tokens": 4, "window_tokens": 1020, "strategy": "engine"}
ALONE = {"draft": ..., "speculation": ...}
FP8_PAIR = {"target.quantization": "fp8", "draft.quantization": "fp8", "kv_cache.dtype": "fp8"}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"
KV_SCALE = "transformer.layers.{}.attention.kv_cache_scaling_factor"
LLM, BLS, ENSEMBLE = "tensorrt_llm", "tensorrt_llm_bls", "ensemble"


def yaml(changes: dict[str, Any], **rest: Any) -> Case:
    """A build YAML of the base pair with these dotted keys changed; the target is spread over four GPUs."""

    def case(folder: Path) -> list[Finding]:
        change = Change(yaml={"target.tensor_parallel": 4} | changes, **rest)
        return run_rules(CONFIG_RULES, deployment_of(folder, change), "pair.yaml")

    return case


def sinks(release: str, more: dict[str, Any], **rest: Any) -> Case:
    return yaml({"attention_sinks": SINKS, "tensorrt_llm": release} | more, **rest)


def repository(
    model: str, before: str, after: str, engine: dict[str, Any] | None = None, *, draft: bool = True
) -> Case:
    """trtkit's own repository with a text of one config.pbtxt, and keys of the target's engine, changed."""

    def case(folder: Path) -> list[Finding]:
        build = tiny_build(folder, tiny_config(draft=draft))
        path = build / "model_repository" / model / "config.pbtxt"
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after, 1))
        config = build / "engines" / "target" / "config.json"
        document = json.loads(config.read_text())
        for key, value in (engine or {}).items():
            plugin = key in document["build_config"]["plugin_config"]
            (document["build_config"]["plugin_config"] if plugin else document["build_config"])[key] = value
        config.write_text(json.dumps(document))
        return check_repository(build / "model_repository")

    return case


def drafts(asked: int, accepted: int) -> Case:
    """An orchestrator that may send `asked` draft tokens to an engine that accepts `accepted`."""
    entry = 'key: "max_draft_len"\n  value {\n    string_value: "%d"'
    return repository(BLS, entry % 4, entry % asked, {"max_draft_len": accepted})


def scales(*values: float) -> Case:
    """A converted checkpoint of three layers for an FP8 cache, whose first layers have these scales."""

    def case(folder: Path) -> list[Finding]:
        out = folder / "out"
        convert_to(tiny_checkpoint(folder / "source"), out, ConversionOptions(dtype="float32"))
        document = json.loads((out / "config.json").read_text())
        document["quantization"]["kv_cache_quant_algo"] = "FP8"
        write_json(out / "config.json", document)
        path = out / "rank0.safetensors"
        data = path.read_bytes()
        tensors = {
            tensor.name: np.frombuffer(data[tensor.start : tensor.stop], dtype="<f4").reshape(tensor.shape)
            for tensor in read_header(path)
        }
        tensors |= {KV_SCALE.format(n): np.array([value], "<f4") for n, value in enumerate(values)}
        path.write_bytes(safetensors_bytes(tensors, "float32"))
        return check_trtllm_checkpoint(out)

    return case


def checkpoint(damage: Callable[[Path], object] = lambda _: None, **config: Any) -> Case:
    """A small Hugging Face checkpoint in several shards, damaged."""

    def case(folder: Path) -> list[Finding]:
        model = tiny_checkpoint(folder / "model", tokenizer=True, max_shard_bytes=100_000, **config)
        damage(model)
        return check_hf_checkpoint(model)

    return case


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[0]


def untied(folder: Path) -> None:
    """config.json no longer says that the head is tied; the weights have none."""
    document = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**document, "tie_word_embeddings": False})


def run_on(machine: Any) -> Case:
    """A build of engines for 0.17.0 and an H100, on a machine."""

    def case(folder: Path) -> list[Finding]:
        config = {"name": "b", "backend": "engine", "tensorrt_llm": "0.17.0", "target": {"checkpoint": "x"}}
        config["gpu"] = {"name": "h100"}
        manifest = {"schema": SCHEMA, "backend": "engine", "tensorrt_llm": "0.17.0", "inputs": {}, "config": config}
        write_json(folder / "manifest.json", manifest)
        return check_machine(machine, open_build(folder))

    return case


ACCEPTED: set[str] = set()
CASES: dict[str, tuple[Case, set[str]]] = {
    "padded vocabularies, token acceptance": (yaml({}, **QWEN, **SIZES), ACCEPTED),
    "padded vocabularies, logits acceptance": (
        yaml({"speculation.acceptance": "logits"}, **QWEN, **SIZES),
        {"PAIR-VOCAB"},
    ),
    "padded vocabularies, logits acceptance, and a draft that is padded": (
        yaml({"speculation.acceptance": "logits", "speculation.pad_draft_vocab": True}, **QWEN, **SIZES),
        ACCEPTED,
    ),
    "a larger draft whose ids the target knows": (yaml({}, **QWEN, **LARGER_DRAFT), ACCEPTED),
    "a larger draft whose ids it does not": (
        yaml({}, **QWEN, **LARGER_DRAFT, draft_tokenizer={"special": {0: "<s>", 1: "</s>", 152000: "<|x|>"}}),
        {"PAIR-TARGET-IDS"},
    ),
    "the same size with permuted ids": (
        yaml({}, draft_tokenizer={"words": (*WORDS[:2], *reversed(WORDS[2:]))}),
        {"PAIR-TOKENIZER"},
    ),
    "added tokens beyond the base vocabulary": (
        yaml(
            {},
            target={"vocab_size": 264},
            draft={"vocab_size": 264},
            **{
                f"{role}_tokenizer": {"special": {0: "<s>", 1: "</s>", **{8 + n: f"<|{n}|>" for n in range(256)}}}
                for role in ("target", "draft")
            },
        ),
        ACCEPTED,
    ),
    "5 drafts for an engine that accepts none": (drafts(5, 0), {"SPEC-K"}),
    "5 drafts for an engine that accepts 10": (drafts(5, 10), ACCEPTED),
    "11 drafts for an engine that accepts 10": (drafts(11, 10), {"SPEC-K"}),
    "reuse on an engine without paged context FMHA": (
        repository(LLM, "", "", {"use_paged_context_fmha": False}, draft=False),
        {"KV-REUSE"},
    ),
    "a target without reuse": (yaml({"kv_cache.reuse": False}), {"SPEC-REUSE"}),
    "sinks and drafts on 1.0": (sinks("1.0", {}), {"SINK-SPEC"}),
    "sinks and drafts on 0.21": (sinks("0.21.0", {}), {"SINK-SPEC"}),
    "sinks on 1.2.1": (sinks("1.2.1", ALONE), {"SINK-VERSION"}),
    "sinks on the LLM API": (sinks("1.2.1", {"backend": "llmapi"}), {"SINK-IGNORED"}),
    "sinks with Qwen2 on 1.0": (sinks("1.0", ALONE, target_family="qwen2"), {"SINK-ARCH"}),
    "an FP8 cache, bfloat16 weights and drafts": (yaml({"kv_cache.dtype": "fp8"}), {"KV-FP8-FMHA"}),
    "an FP8 cache on an A100": (
        yaml({"kv_cache.dtype": "fp8", "gpu.name": "a100-80gb", **ALONE}),
        {"KV-FP8-SM"},
    ),
    "an FP8 cache with INT8 weights": (
        yaml({"kv_cache.dtype": "fp8", "target.quantization": "int8_weight_only", **ALONE}),
        {"KV-COMBO"},
    ),
    "FP8 weights, an FP8 cache and drafts on an H100": (yaml(FP8_PAIR), ACCEPTED),
    "context logits with drafts": (repository(LLM, "", "", {"gather_context_logits": True}), {"LOGITS-SPEC"}),
    "no KV scales": (scales(), {"SCALE-ABSENT"}),
    "KV scales of 1.0": (scales(1.0, 1.0, 1.0), ACCEPTED),
    "calibrated KV scales": (scales(0.003, 0.02, 0.05), ACCEPTED),
    "a layer without its KV scale": (scales(0.003, 0.02), {"SCALE-INCOMPLETE"}),
    "a KV scale that is no number": (scales(0.003, float("nan"), 0.05), {"SCALE-INVALID"}),
    "a KV scale of 0": (scales(0.003, 0.0, 0.05), {"SCALE-INVALID"}),
    "a negative KV scale": (scales(0.003, -0.02, 0.05), {"SCALE-INVALID"}),
    "a Git-LFS pointer": (checkpoint(lambda folder: first_shard(folder).write_text(POINTER)), {"CKPT-LFS"}),
    "a truncated shard": (
        checkpoint(lambda folder: first_shard(folder).write_bytes(first_shard(folder).read_bytes()[:-64])),
        {"CKPT-TRUNCATED"},
    ),
    "a shard that the index names and nobody has": (
        checkpoint(lambda folder: first_shard(folder).unlink()),
        {"CKPT-MISSING"},
    ),
    "rope of Llama 3": (checkpoint(rope_scaling=LLAMA3_ROPE), ACCEPTED),
    "rope in the old spelling": (checkpoint(rope_scaling={"type": "linear", "factor": 4.0}), ACCEPTED),
    "no rope scaling": (checkpoint(rope_scaling=None), ACCEPTED),
    "rope of an unknown kind": (checkpoint(rope_scaling={"rope_type": "spiral", "factor": 2.0}), {"CKPT-ROPE"}),
    "a tied head": (checkpoint(tie_word_embeddings=True), ACCEPTED),
    "a head that is missing": (checkpoint(untied, tie_word_embeddings=True), {"CKPT-MISSING"}),
    "a runtime of another version": (run_on(gpu_box(version="0.19.0")), {"RUN-VERSION"}),
    "a GPU of another SM": (run_on(gpu_box(L40S, version="0.17.0")), {"RUN-SM"}),
    "the runtime and the GPU of the build": (run_on(gpu_box(H100, version="0.17.0")), ACCEPTED),
    "two models that do not fit on one GPU": (yaml({"target.tensor_parallel": 1, "gpu.count": 1}), {"MEMORY-FIT"}),
    "a placeholder in config.pbtxt": (
        repository(LLM, "data_type: TYPE_FP32", "data_type: ${logits_datatype}"),
        {"PBTXT-PLACEHOLDER"},
    ),
    "decoupled here and not there": (repository(BLS, "decoupled: true", "decoupled: false"), {"REPO-DECOUPLED"}),
    "an ensemble that maps a tensor nobody has": (
        repository(ENSEMBLE, 'key: "runtime_top_k"', 'key: "top_k"'),
        {"EDGE-TENSOR"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_known_pain_has_exactly_its_outcome(name: str, tmp_path: Path) -> None:
    case, expected = CASES[name]
    assert {finding.code for finding in case(tmp_path) if finding.severity == "error"} == expected


def found(name: str, folder: Path) -> dict[str, Finding]:
    return {finding.code: finding for finding in CASES[name][0](folder)}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("padded vocabularies, token acceptance", "PAIR-PADDED", ["151936", "152064"]),
        ("padded vocabularies, logits acceptance", "PAIR-VOCAB", ["151936", "152064", "pad_draft_vocab: true"]),
        ("the same size with permuted ids", "PAIR-TOKENIZER", ["6 ids", "id 2:", "id 3:", "id 4:"]),
        ("5 drafts for an engine that accepts none", "SPEC-K", ["engine accepts 0 draft tokens"]),
        ("reuse on an engine without paged context FMHA", "KV-REUSE", ["config.pbtxt", "engines/target/config.json"]),
        ("sinks and drafts on 1.0", "SINK-SPEC", ["1.0.0 builds no engine", "->", "refuses to load without reuse"]),
        ("sinks on 1.2.1", "SINK-VERSION", ["0.21.0"]),
        ("KV scales of 1.0", "SCALE-CONSTANT", ["1.0"]),
        ("calibrated KV scales", "SCALE-CALIBRATED", ["0.003", "0.05"]),
        ("a layer without its KV scale", "SCALE-INCOMPLETE", ["2"]),
        ("a Git-LFS pointer", "CKPT-LFS", ["git lfs pull"]),
        ("rope of an unknown kind", "CKPT-ROPE", ["spiral"]),
        ("a head that is missing", "CKPT-MISSING", ["lm_head.weight"]),
        ("two models that do not fit on one GPU", "MEMORY-FIT", ["lacks", "GB"]),
        ("a placeholder in config.pbtxt", "PBTXT-PLACEHOLDER", ["config.pbtxt:", "logits_datatype"]),
        ("an ensemble that maps a tensor nobody has", "EDGE-TENSOR", ["top_k"]),
    ],
)
def test_and_says_what_it_must(name: str, code: str, said: list[str], tmp_path: Path) -> None:
    finding = found(name, tmp_path)[code]
    text = f"{finding.where} {finding.cause} {finding.fix}"
    assert [words for words in said if words not in text] == []


def test_the_accepted_fp8_pair_has_both_kinds_of_context_attention(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, Change(yaml={"target.tensor_parallel": 4} | FP8_PAIR))
    engine = deployment.engine_spec("target")
    assert engine.paged_context_fmha and engine.fp8_context_fmha


def test_a_misspelt_key_brings_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean max_draft_len\?"):
        deployment_of(tmp_path, Change(yaml={"speculation.max_drat_len": 5}))


def answers(target: ScriptedLlm, draft: ScriptedLlm | None, tokens: int) -> list[int]:
    run = DraftTargetRun(Generation("r", (1, 2, 3), tokens, end_ids=(END,)), target, draft, FixedDraftLength(4))
    return [token for step in run.steps() for token in step]


def counting(context: tuple[int, ...]) -> int:
    return (context[-1] + 1) % 50


def test_a_draft_that_ends_at_once_is_left_out_of_the_request_and_changes_nothing() -> None:
    target = ScriptedLlm(counting)
    assert answers(target, ScriptedLlm(lambda _: END), 6) == answers(ScriptedLlm(counting), None, 6)
    assert {call.draft_ids for call in target.calls} == {()}


def test_with_one_token_left_nothing_is_drafted() -> None:
    draft = ScriptedLlm(counting)
    assert len(answers(ScriptedLlm(counting), draft, 1)) == 1
    assert draft.calls == []


def pieces(tokenizer: TextTokenizer, ids: list[int], size: int) -> Iterator[str]:
    stream = tokenizer.stream(skip_special_tokens=True)
    for start in range(0, len(ids), size):
        yield stream.push(ids[start : start + size])
    yield stream.finish()


@pytest.mark.parametrize("size", range(1, 7))
def test_streams_in_any_chunks_join_to_one_text_and_hold_half_characters_back(size: int, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tiny_tokenizer(tmp_path))
    ids = tokenizer.encode("The fastest 日 本", add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids, size)) == "The fastest 日 本"
    assert not any("\ufffd" in piece for piece in pieces(tokenizer, ids, size))
    cut = list(pieces(tokenizer, tokenizer.encode("日", add_special_tokens=False)[:-1], size))
    assert (cut[:-1], cut[-1]) == ([""] * (len(cut) - 1), "\ufffd")


def test_memory_of_a_large_conversion_is_stated_streamed_and_not(tmp_path: Path) -> None:
    """Llama-70B in bfloat16 is 141 GB: streamed it fits a host of 48 GiB, loaded whole it does not."""
    from trtkit.planning.plan import PlanInput, make_plan

    deployment = deployment_of(tmp_path, Change(yaml=ALONE, target=LLAMA_70B))
    host = make_plan(deployment.config, deployment.specs, PlanInput(gpu=None, memory_bytes=48 << 30)).host
    assert host.peak_bytes < 48 << 30 < 140e9 < host.unstreamed_bytes


@pytest.mark.parametrize("quantization", ["none", "fp8", "fp8_rowwise", "int4_awq", "w4a8_awq", "nvfp4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("gpu", ["a100", "l40s", "h100", "b200"])
def test_the_explained_switches_are_those_of_the_command(
    quantization: str, kv_dtype: str, gpu: str, tmp_path: Path
) -> None:
    """The chain in a finding and the flags of trtllm-build come from different code and must agree."""
    changes = {"target.quantization": quantization, "kv_cache.dtype": kv_dtype, "gpu.name": gpu}
    deployment = deployment_of(tmp_path, Change(yaml=changes))
    switch = deployment.outcome("target").paged_context_fmha
    assert switch.on == deployment.engine_spec("target").can_page_context
    assert switch.on == (not switch.because)
