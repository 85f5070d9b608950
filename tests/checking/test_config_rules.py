"""Every rule about a YAML has a case that triggers it and one that comes close and does not."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deployments import LLAMA_70B, Change, deployment_of
from trtkit.checking.rule import run_rules
from trtkit.checking.rules import CONFIG_RULES
from trtkit.findings import Finding

QWEN3_FP8 = {"target.quantization": "fp8", "kv_cache.dtype": "fp8"}


class Case(NamedTuple):
    """`close` differs from `trigger` by the one thing the rule is about."""

    trigger: Change
    close: Change


def yaml(**values: Any) -> Change:
    """A change of the YAML alone; two underscores stand for a dot."""
    return Change(yaml={key.replace("__", "."): value for key, value in values.items()})


def alone(**values: Any) -> Change:
    """Without a draft."""
    return yaml(draft=..., speculation=..., **values)


SINKS = {"sink_tokens": 4, "window_tokens": 1020, "strategy": "engine"}
ROLLING = {"sink_tokens": 4, "window_tokens": 1020, "strategy": "rolling"}
FP8 = {"checkpoint": "target", "quantization": "fp8"}
QWEN = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
EXPERTS = {"num_local_experts": 8, "num_attention_heads": 32, "hidden_size": 4096}

CASES: dict[str, Case] = {
    "VERSION-UNKNOWN": Case(yaml(tensorrt_llm="1.2.7"), yaml(tensorrt_llm="1.2.0")),
    "VERSION-ENGINE": Case(yaml(tensorrt_llm="1.4.0rc1"), yaml(tensorrt_llm="1.4.0rc1", backend="llmapi")),
    "VERSION-LLMAPI": Case(yaml(tensorrt_llm="0.21.0", backend="llmapi"), yaml(tensorrt_llm="1.0.0", backend="llmapi")),
    "VERSION-BUG": Case(
        Change(yaml={"tensorrt_llm": "1.0.0", **QWEN3_FP8}, target_family="qwen3"),
        Change(yaml={"tensorrt_llm": "1.1.0", **QWEN3_FP8}, target_family="qwen3"),
    ),
    "GPU-NODES": Case(yaml(gpu__count=9, target__tensor_parallel=8), yaml(gpu__count=8, target__tensor_parallel=8)),
    "GPU-UNKNOWN": Case(yaml(gpu__name="h1000"), yaml(gpu__name="H100")),
    "GPU-COUNT": Case(yaml(target__tensor_parallel=8), yaml(target__tensor_parallel=4)),
    "QUANT-SM": Case(
        yaml(gpu__name="a100", target__quantization="fp8"), yaml(gpu__name="l40s", target__quantization="fp8")
    ),
    "QUANT-BLACKWELL": Case(
        yaml(gpu__name="b200", target__quantization="int8_weight_only"),
        yaml(gpu__name="rtx-5090", target__quantization="int8_weight_only"),
    ),
    "CKPT-ABSENT": Case(
        Change(yaml={"draft.checkpoint": "org/draft"}, roles=("target",)),
        Change(yaml={"draft.checkpoint": "org/draft"}),
    ),
    "CKPT-FOLDER": Case(
        Change(yaml={"draft.checkpoint": "../org/draft"}, roles=("target",)),
        Change(yaml={"draft.checkpoint": "org/draft"}, roles=("target",)),
    ),
    "CKPT-REVISION": Case(yaml(target__revision="v1"), yaml(target__revision="v1", target__checkpoint="org/target")),
    "MODEL-TP": Case(
        Change(yaml={"target.tensor_parallel": 8, "gpu.count": 8}, target=QWEN),
        Change(yaml={"target.tensor_parallel": 4, "gpu.count": 8}, target=QWEN),
    ),
    "MODEL-PP": Case(
        Change(yaml={"draft.pipeline_parallel": 3, "gpu.count": 8}, draft={"num_hidden_layers": 2}),
        Change(yaml={"draft.pipeline_parallel": 2, "gpu.count": 8}, draft={"num_hidden_layers": 2}),
    ),
    "MODEL-EP": Case(
        Change(yaml={"target.tensor_parallel": 4, "target.expert_parallel": 4}),
        Change(
            yaml={"target.tensor_parallel": 4, "target.expert_parallel": 4}, target=EXPERTS, target_family="mixtral"
        ),
    ),
    "QUANT-TILES": Case(
        Change(yaml={"target.quantization": "int8_weight_only"}, target={"intermediate_size": 28704}),
        Change(yaml={"target.quantization": "int8_weight_only"}, target={"intermediate_size": 28736}),
    ),
    "MODEL-VERSION": Case(
        Change(yaml={"tensorrt_llm": "0.21.0"}, target_family="qwen3"),
        Change(yaml={"tensorrt_llm": "1.0.0"}, target_family="qwen3"),
    ),
    "MODEL-UNTESTED": Case(
        Change(target_family="gemma2"), Change(yaml={"draft": ..., "speculation": ...}, target_family="gemma2")
    ),
    "SPEC-DTYPE": Case(yaml(target__dtype="float32"), alone(target__dtype="float32")),
    "MODEL-RANGE": Case(yaml(target__dtype="float16"), yaml(target__dtype="bfloat16")),
    "PAIR-TOKENIZER": Case(
        Change(draft_tokenizer={"words": ("<s>", "</s>", "b", "a", "c", "ab", "bc", "abc")}),
        Change(draft_tokenizer={"words": ("<s>", "</s>", "a", "b", "c", "ab", "bc", "abc")}),
    ),
    "PAIR-SPECIAL": Case(
        Change(
            target_tokenizer={"special": {0: "<s>", 1: "</s>", 8: "<|pad|>"}},
            draft_tokenizer={"special": {0: "<s>", 1: "</s>", 8: "<|reserved|>"}},
        ),
        Change(
            target_tokenizer={"special": {0: "<s>", 1: "</s>", 8: "<|pad|>"}},
            draft_tokenizer={"special": {0: "<s>", 1: "</s>", 8: "<|pad|>"}, "normalizer": {"type": "NFC"}},
        ),
    ),
    "PAIR-SEGMENTATION": Case(
        Change(draft_tokenizer={"merges": ["b c", "a b", "a bc"]}),
        Change(draft_tokenizer={"merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}),
    ),
    "PAIR-DRAFT-IDS": Case(
        Change(target_tokenizer={"special": {0: "<s>", 1: "</s>", 40: "<|x|>"}}, draft={"vocab_size": 40}),
        Change(target_tokenizer={"special": {0: "<s>", 1: "</s>", 40: "<|x|>"}}, draft={"vocab_size": 41}),
    ),
    "PAIR-TARGET-IDS": Case(
        Change(draft_tokenizer={"special": {0: "<s>", 1: "</s>", 40: "<|x|>"}}, target={"vocab_size": 40}),
        Change(draft_tokenizer={"special": {0: "<s>", 1: "</s>", 40: "<|x|>"}}, target={"vocab_size": 41}),
    ),
    "PAIR-EXTRA": Case(
        Change(target_tokenizer={"special": {0: "<s>", 1: "</s>", 9: "<think>"}}),
        Change(draft_tokenizer={"special": {0: "<s>", 1: "</s>", 9: "<think>"}}),
    ),
    "PAIR-VOCAB": Case(
        Change(yaml={"speculation.acceptance": "logits"}, target={"vocab_size": 152064}, draft={"vocab_size": 151936}),
        Change(yaml={"speculation.acceptance": "logits"}, target={"vocab_size": 152064}, draft={"vocab_size": 152064}),
    ),
    "PAIR-PADDING": Case(
        yaml(speculation__pad_draft_vocab=True, draft__quantization="int4_awq"),
        yaml(speculation__pad_draft_vocab=True, draft__quantization="fp8"),
    ),
    "QUANT-EXPORT": Case(
        Change(yaml={"target.quantization": "int4_awq"}, target={"intermediate_size": 28608}),
        Change(yaml={"target.quantization": "int4_awq"}, target={"intermediate_size": 28544}),
    ),
    "LLMAPI-ADAPTIVE": Case(
        yaml(backend="llmapi", speculation__adaptive=True), yaml(backend="llmapi", speculation__adaptive=False)
    ),
    "LLMAPI-PADDING": Case(
        yaml(backend="llmapi", speculation__pad_draft_vocab=True), yaml(speculation__pad_draft_vocab=True)
    ),
    "LLMAPI-DRAFT": Case(
        yaml(backend="llmapi", draft__dtype="float16"),
        yaml(backend="llmapi", draft__dtype="float16", target__dtype="float16"),
    ),
    "LLMAPI-QUANT": Case(
        yaml(backend="llmapi", target__quantization="int8_weight_only"),
        yaml(backend="llmapi", target__quantization="fp8"),
    ),
    "PAIR-PADDED": Case(
        Change(target={"vocab_size": 152064}, draft={"vocab_size": 151936}),
        Change(target={"vocab_size": 152064}, draft={"vocab_size": 152064}),
    ),
    "TOK-BEYOND": Case(
        Change(target_tokenizer={"special": {0: "<s>", 1: "</s>", 128256: "<|x|>"}}),
        Change(target_tokenizer={"special": {0: "<s>", 1: "</s>", 128255: "<|x|>"}}),
    ),
    "PAIR-LENGTH": Case(
        Change(draft={"max_position_embeddings": 131071}), Change(target={"max_position_embeddings": 131071})
    ),
    "PAIR-TEMPLATE": Case(
        Change(draft_tokenizer={"settings": {"chat_template": "{{ a }}"}}),
        Change(
            draft_tokenizer={"settings": {"chat_template": "{{ a }}"}},
            target_tokenizer={"settings": {"chat_template": "{{ a }}"}},
        ),
    ),
    "SPEC-REUSE": Case(yaml(kv_cache__reuse=False), alone(kv_cache__reuse=False)),
    "SPEC-BATCH": Case(yaml(limits__max_batch_size=65), yaml(limits__max_batch_size=64)),
    "SPEC-LENGTH": Case(
        yaml(speculation__max_draft_len=8, limits__max_output_len=8),
        yaml(speculation__max_draft_len=7, limits__max_output_len=8),
    ),
    "SPEC-LAUNCH": Case(yaml(target__tensor_parallel=4), yaml(target__tensor_parallel=1)),
    "SPEC-DRAFT-TP": Case(yaml(draft__tensor_parallel=4), yaml(draft__tensor_parallel=2)),
    "SPEC-DRAFT-SIZE": Case(Change(draft={**LLAMA_70B, "num_hidden_layers": 16}), Change()),
    "KV-DTYPE": Case(yaml(kv_cache__dtype="int4"), yaml(kv_cache__dtype="int4", backend="reference")),
    "KV-FP8-SM": Case(
        yaml(kv_cache__dtype="fp8", gpu__name="a100"),
        yaml(kv_cache__dtype="fp8", gpu__name="a100", backend="reference"),
    ),
    "KV-COMBO": Case(
        yaml(kv_cache__dtype="fp8", target__quantization="int8_weight_only"),
        yaml(kv_cache__dtype="int8", target__quantization="int8_weight_only"),
    ),
    "KV-FP8-FMHA": Case(yaml(kv_cache__dtype="fp8"), yaml(kv_cache__dtype="fp8", target__quantization="fp8")),
    "KV-INT8-SPEC": Case(yaml(kv_cache__dtype="int8"), alone(kv_cache__dtype="int8")),
    "KV-REUSE-LOST": Case(alone(kv_cache__dtype="int8"), alone(kv_cache__dtype="int8", kv_cache__reuse=False)),
    "KV-EXPORT": Case(
        alone(kv_cache__dtype="int8", target__quantization="int4_awq"),
        alone(kv_cache__dtype="fp8", target__quantization="int4_awq"),
    ),
    "KV-FP8-BIAS": Case(
        Change(yaml={"kv_cache.dtype": "fp8", "target": FP8}, target=QWEN, target_family="qwen2"),
        Change(yaml={"kv_cache.dtype": "fp8", "target": FP8}, target={**QWEN, "head_dim": 128}, target_family="qwen3"),
    ),
    "KV-PARITY": Case(alone(kv_cache__dtype="int8"), alone(kv_cache__dtype="auto")),
    "KV-WINDOW-REUSE": Case(
        Change(yaml={"gpu.name": "l40s"}, target_family="mistral", target={"sliding_window": 3071}),
        Change(yaml={"gpu.name": "l40s"}, target_family="mistral", target={"sliding_window": 3072}),
    ),
    "SINK-SPEC": Case(yaml(attention_sinks=SINKS), alone(attention_sinks=SINKS)),
    "SINK-VERSION": Case(
        alone(attention_sinks=SINKS, tensorrt_llm="1.0.0"), alone(attention_sinks=SINKS, tensorrt_llm="0.21.0")
    ),
    "SINK-IGNORED": Case(
        yaml(attention_sinks=SINKS, backend="llmapi"), yaml(attention_sinks=ROLLING, backend="llmapi")
    ),
    "SINK-ARCH": Case(
        Change(yaml={"attention_sinks": SINKS, "tensorrt_llm": "0.21.0"}, target=QWEN, target_family="qwen2"),
        Change(yaml={"attention_sinks": SINKS, "tensorrt_llm": "0.21.0"}),
    ),
    "SINK-REUSE": Case(
        alone(attention_sinks=SINKS, tensorrt_llm="0.21.0"),
        alone(attention_sinks=SINKS, tensorrt_llm="0.21.0", kv_cache__reuse=False),
    ),
    "SINK-EVICT": Case(
        yaml(attention_sinks={**ROLLING, "evict_tokens": 100}), yaml(attention_sinks={**ROLLING, "evict_tokens": 96})
    ),
    "SINK-WINDOW": Case(
        yaml(attention_sinks={**ROLLING, "window_tokens": 2045}),
        yaml(attention_sinks={**ROLLING, "window_tokens": 2044}),
    ),
    "SINK-LLMAPI": Case(
        yaml(attention_sinks=ROLLING, backend="llmapi"), yaml(attention_sinks=ROLLING, backend="reference")
    ),
    "SINK-POSITIONS": Case(
        Change(yaml={"attention_sinks": ROLLING}, draft={"max_position_embeddings": 1023}),
        Change(yaml={"attention_sinks": ROLLING}, draft={"max_position_embeddings": 1024}),
    ),
    "LIMIT-POSITIONS": Case(
        Change(draft={"max_position_embeddings": 2048}),
        Change(
            draft={"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
    ),
    "FILE-ABSENT": Case(yaml(calibration__prompts="nowhere.txt"), yaml(calibration__prompts=__file__)),
    "LIMIT-WRITTEN": Case(yaml(), alone()),
    "MEMORY-FIT": Case(yaml(gpu__count=1), yaml(gpu__count=1, target__quantization="int4_awq")),
    "MEMORY-BATCH": Case(
        yaml(target__tensor_parallel=4, limits__max_input_len=100_000, limits__max_batch_size=64),
        yaml(target__tensor_parallel=4, limits__max_input_len=100_000, limits__max_batch_size=1),
    ),
    "LLMAPI-PP": Case(
        yaml(backend="llmapi", target__pipeline_parallel=2), alone(backend="llmapi", target__pipeline_parallel=2)
    ),
    "LLMAPI-LOGITS": Case(
        yaml(backend="llmapi", speculation__acceptance="logits"),
        yaml(backend="llmapi", speculation__acceptance="token"),
    ),
    "LLMAPI-REUSE": Case(yaml(backend="llmapi"), yaml(backend="llmapi", tensorrt_llm="1.3.0rc29")),
    "LLMAPI-BLOCK": Case(
        yaml(backend="llmapi", tensorrt_llm="1.0.0", kv_cache__block_size=64),
        yaml(backend="llmapi", tensorrt_llm="1.2.1", kv_cache__block_size=64),
    ),
    "LLMAPI-DRAFT-TP": Case(
        yaml(backend="llmapi", target__tensor_parallel=4),
        yaml(backend="llmapi", target__tensor_parallel=4, draft__tensor_parallel=4),
    ),
    "REFERENCE-LIMIT": Case(
        Change(yaml={"backend": "reference"}, target={"hidden_act": "relu"}), yaml(backend="reference")
    ),
}


def codes(folder: Path, change: Change) -> set[str]:
    return {finding.code for finding in run_rules(CONFIG_RULES, deployment_of(folder, change), "pair.yaml")}


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in CONFIG_RULES} == set(CASES)


@pytest.mark.parametrize("code", CASES)
def test_a_rule_triggers_on_its_case(code: str, tmp_path: Path) -> None:
    assert code in codes(tmp_path, CASES[code].trigger)


@pytest.mark.parametrize("code", CASES)
def test_a_rule_stays_silent_when_it_only_comes_close(code: str, tmp_path: Path) -> None:
    assert code not in codes(tmp_path, CASES[code].close)


def test_the_base_deployment_is_sound(tmp_path: Path) -> None:
    sound = deployment_of(tmp_path, yaml(target__tensor_parallel=4))
    assert {finding.severity for finding in run_rules(CONFIG_RULES, sound, "pair.yaml")} == {"note"}


@pytest.mark.parametrize("window", [5, 6])
def test_a_rolling_window_must_hold_more_than_a_draft(window: int, tmp_path: Path) -> None:
    change = yaml(attention_sinks={**ROLLING, "window_tokens": window})
    assert ("SINK-WINDOW" in codes(tmp_path, change)) == (window == 5)


def test_rolling_sinks_lift_the_limit_of_positions(tmp_path: Path) -> None:
    short = {"max_position_embeddings": 2048}
    assert "LIMIT-POSITIONS" in codes(tmp_path, Change(draft=short))
    assert "LIMIT-POSITIONS" not in codes(tmp_path, Change(yaml={"attention_sinks": ROLLING}, draft=short))


def finding_of(folder: Path, change: Change, code: str) -> Finding:
    findings = run_rules(CONFIG_RULES, deployment_of(folder, change), "pair.yaml")
    return next(finding for finding in findings if finding.code == code)


def test_engine_sinks_lift_the_limit_of_positions_for_answers_and_not_for_prompts(tmp_path: Path) -> None:
    short = {"max_position_embeddings": 2048}
    sinks = {"attention_sinks": SINKS, "tensorrt_llm": "0.21.0", "draft": ..., "speculation": ...}
    change = Change(yaml={**sinks, "limits.max_input_len": 2048, "limits.max_output_len": 2048}, target=short)
    assert "LIMIT-POSITIONS" not in codes(tmp_path, change)
    longer = Change(yaml={**sinks, "limits.max_input_len": 2049}, target=short)
    found = finding_of(tmp_path, longer, "LIMIT-POSITIONS")
    assert "prompts of 2049 tokens" in found.cause and "max_output_len" not in found.fix


def test_stretched_positions_hold_longer_windows(tmp_path: Path) -> None:
    linear = {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert "SINK-POSITIONS" not in codes(tmp_path, Change(yaml={"attention_sinks": ROLLING}, draft=linear))
    assert "SINK-POSITIONS" in codes(
        tmp_path, Change(yaml={"attention_sinks": {**ROLLING, "window_tokens": 1021}}, draft=linear)
    )


@pytest.mark.parametrize(("asked", "fix"), [(4000, "max_position_embeddings: 4096"), (5000, "lower limits")])
def test_a_yarn_that_reaches_far_enough_is_to_be_written_into_the_config(asked: int, fix: str, tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    draft = {"max_position_embeddings": 1024, "rope_scaling": yarn}
    change = Change(yaml={"limits.max_input_len": asked - 100, "limits.max_output_len": 100}, draft=draft)
    assert fix in finding_of(tmp_path, change, "LIMIT-POSITIONS").fix


def test_a_draft_that_loses_its_reuse_is_named(tmp_path: Path) -> None:
    lost = {"kv_cache.dtype": "fp8", "target.quantization": "fp8", "target.tensor_parallel": 4}
    found = finding_of(tmp_path, Change(yaml=lost), "KV-REUSE-LOST")
    assert "on the draft" in found.cause and "every round encodes the whole text anew" in found.cause
    assert "KV-REUSE-LOST" not in codes(tmp_path, Change(yaml=lost | {"draft.quantization": "fp8"}))


def test_the_ways_out_of_sinks_on_the_llm_api_lead_somewhere(tmp_path: Path) -> None:
    sinks = {"attention_sinks": SINKS, "backend": "llmapi"}
    assert "SINK-LLMAPI" in codes(tmp_path, Change(yaml=sinks | {"attention_sinks": ROLLING}))
    fix = finding_of(tmp_path, Change(yaml=sinks), "SINK-IGNORED").fix
    assert "remove attention_sinks" in fix and "backend: engine" in fix


def test_a_small_target_gives_the_legal_numbers_of_ranks(tmp_path: Path) -> None:
    change = Change(yaml={"target.tensor_parallel": 8, "gpu.count": 8}, target=QWEN)
    findings = run_rules(CONFIG_RULES, deployment_of(tmp_path, change), "pair.yaml")
    (finding,) = [finding for finding in findings if finding.code == "MODEL-TP"]
    assert finding.where == "pair.yaml:target.tensor_parallel"
    assert "28 attention heads" in finding.cause
    assert finding.fix == "write tensor_parallel: one of 1, 2, 4"


def test_the_sink_and_draft_conflict_is_explained_as_a_chain(tmp_path: Path) -> None:
    findings = run_rules(CONFIG_RULES, deployment_of(tmp_path, yaml(attention_sinks=SINKS)), "pair.yaml")
    cause = next(finding.cause for finding in findings if finding.code == "SINK-SPEC")
    steps = ["--streamingllm", "use_paged_context_fmha", "cannot reuse", "refuses to load"]
    positions = [cause.index(step) for step in steps]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("release", "gpu", "warned"), [("1.0.0", "h100", False), ("0.21.0", "h100", True), ("1.2.1", "b200", True)]
)
def test_hopper_reuses_windows_from_1_0_on(release: str, gpu: str, warned: bool, tmp_path: Path) -> None:
    values = {"tensorrt_llm": release, "gpu.name": gpu}
    change = Change(yaml=values, target_family="mistral", target={"sliding_window": 512})
    found = {finding.code for finding in run_rules(CONFIG_RULES, deployment_of(tmp_path, change), "pair.yaml")}
    assert ("KV-WINDOW-REUSE" in found) == warned


@pytest.mark.parametrize(
    ("weights", "cache", "code", "pair_fix", "single_fix"),
    [
        ("int8_weight_only", "fp8", "KV-COMBO", "dtype: auto,", "dtype: auto or int8,"),
        ("int4_awq", "int8", "KV-EXPORT", "dtype: auto,", "dtype: auto or fp8,"),
        ("w4a8_awq", "int8", "KV-EXPORT", "dtype: auto or fp8,", "dtype: auto or fp8,"),
    ],
)
def test_no_fix_for_a_cache_leads_a_pair_into_the_next_error(
    weights: str, cache: str, code: str, pair_fix: str, single_fix: str, tmp_path: Path
) -> None:
    asked = {"kv_cache.dtype": cache, "target.quantization": weights}
    assert pair_fix in finding_of(tmp_path / "pair", Change(yaml=asked), code).fix
    single = Change(yaml={**asked, "draft": ..., "speculation": ...})
    assert single_fix in finding_of(tmp_path / "single", single, code).fix


def test_no_pair_is_told_to_do_without_reuse(tmp_path: Path) -> None:
    windows = {"gpu.name": "l40s", "tensorrt_llm": "0.21.0"}
    shape = {"sliding_window": 512}
    pair = Change(yaml=windows, target_family="mistral", target=shape)
    found = finding_of(tmp_path / "pair", pair, "KV-WINDOW-REUSE")
    assert "reuse: false" not in found.fix and "does not load" in found.cause
    single = Change(yaml={**windows, "draft": ..., "speculation": ...}, target_family="mistral", target=shape)
    assert "reuse: false" in finding_of(tmp_path / "single", single, "KV-WINDOW-REUSE").fix


def test_the_llm_api_of_1_0_has_a_draft_defect_that_1_1_has_not(tmp_path: Path) -> None:
    for release, warned in (("1.0.0", True), ("1.0.3", True), ("1.1.0", False)):
        change = Change(yaml={"tensorrt_llm": release, "backend": "llmapi", "kv_cache.reuse": False})
        found = {finding.code for finding in run_rules(CONFIG_RULES, deployment_of(tmp_path, change), "pair.yaml")}
        assert ("VERSION-BUG" in found) == warned


def test_the_llm_api_runs_both_models_on_the_targets_gpus(tmp_path: Path) -> None:
    values = {"backend": "llmapi", "gpu.count": 16, "target.tensor_parallel": 8, "draft.tensor_parallel": 8}
    found = run_rules(CONFIG_RULES, deployment_of(tmp_path, Change(yaml=values)), "pair.yaml")
    assert "GPU-NODES" not in {finding.code for finding in found}
