"""Real configurations that work: not one error, and not one warning, is reported about them."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_models import write_real_model
from tiny_build import tiny_build, tiny_config
from trtkit.checking.folder_checks import check_build, check_repository
from trtkit.checking.target import CheckOptions, check_target

LLAMA3_TOKENIZER = {"special": {0: "<s>", 1: "</s>", 8: "<|finetune_right_pad_id|>"}}


def model(name: str, **rest: Any) -> dict[str, Any]:
    return {"checkpoint": name, **rest}


def deployment(target: dict[str, Any], draft: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    pair = {"draft": draft, "speculation": {"kind": "draft_target", "max_draft_len": 5}} if draft else {}
    limits = {"max_batch_size": 4, "max_input_len": 1024, "max_output_len": 512}
    return {"name": "real", "backend": "engine", "target": target, **pair, "limits": limits, **rest}


def gpu(name: str, count: int = 1) -> dict[str, Any]:
    return {"name": name, "count": count}


LLAMA_70B, LLAMA_8B, LLAMA_1B = (
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
)
SINKS = {"sink_tokens": 4, "window_tokens": 1020, "strategy": "engine"}
FP8 = {"quantization": "fp8"}

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "70b and 1b in fp8 on four h100": deployment(
        model(LLAMA_70B, tensor_parallel=4, **FP8),
        model(LLAMA_1B, **FP8),
        gpu=gpu("h100-sxm-80gb", 4),
        kv_cache={"dtype": "fp8"},
    ),
    "70b and 1b with rolling sinks": deployment(
        model(LLAMA_70B, tensor_parallel=4),
        model(LLAMA_1B),
        gpu=gpu("h100", 4),
        attention_sinks={**SINKS, "strategy": "rolling"},
    ),
    "70b and 1b on eight a100": deployment(
        model(LLAMA_70B, tensor_parallel=8), model(LLAMA_1B, tensor_parallel=2), gpu=gpu("a100-80gb", 8)
    ),
    "8b in fp8 with an fp8 cache on an l40s": deployment(
        model(LLAMA_8B, **FP8), gpu=gpu("l40s"), kv_cache={"dtype": "fp8"}
    ),
    "8b in nvfp4 on a b200": deployment(
        model(LLAMA_8B, quantization="nvfp4"), gpu=gpu("b200"), kv_cache={"dtype": "fp8"}
    ),
    "llama 2 7b with engine sinks on 0.21": deployment(
        model("meta-llama/Llama-2-7b-hf", dtype="float16"),
        gpu=gpu("a100-40gb"),
        tensorrt_llm="0.21.0",
        attention_sinks=SINKS,
        kv_cache={"reuse": False},
    ),
    "llama 2 7b in int4 on an a10": deployment(
        model("meta-llama/Llama-2-7b-hf", dtype="float16", quantization="int4_awq"), gpu=gpu("a10")
    ),
    "llama 2 70b with tinyllama": deployment(
        model("meta-llama/Llama-2-70b-hf", dtype="float16", tensor_parallel=4),
        model("TinyLlama/TinyLlama-1.1B-Chat-v1.0", dtype="float16"),
        gpu=gpu("a100", 4),
    ),
    "smollm2 1.7b with 135m on the reference backend": deployment(
        model("HuggingFaceTB/SmolLM2-1.7B-Instruct"), model("HuggingFaceTB/SmolLM2-135M-Instruct"), backend="reference"
    ),
    "mistral 0.1 within its window": deployment(model("mistralai/Mistral-7B-v0.1"), gpu=gpu("l40s")),
    "mistral 0.3 past 4096 tokens": deployment(
        model("mistralai/Mistral-7B-Instruct-v0.3"),
        gpu=gpu("l40s"),
        limits={"max_batch_size": 2, "max_input_len": 8192, "max_output_len": 1024},
    ),
    "mixtral 8x7b with its experts spread": deployment(
        model("mistralai/Mixtral-8x7B-Instruct-v0.1", tensor_parallel=2, expert_parallel=2), gpu=gpu("h100", 2)
    ),
    "qwen 2.5 72b with 1.5b, padded vocabularies": deployment(
        model("Qwen/Qwen2.5-72B-Instruct", tensor_parallel=4), model("Qwen/Qwen2.5-1.5B-Instruct"), gpu=gpu("h100", 4)
    ),
    "qwen 2.5 7b on four gpus": deployment(
        model("Qwen/Qwen2.5-7B-Instruct", tensor_parallel=4), gpu=gpu("rtx-4090", 4)
    ),
    "qwen 2 1.5b with duplicated kv heads": deployment(model("Qwen/Qwen2-1.5B", tensor_parallel=4), gpu=gpu("l4", 4)),
    "qwen 3 32b with 0.6b in fp8": deployment(
        model("Qwen/Qwen3-32B", **FP8), model("Qwen/Qwen3-0.6B", **FP8), gpu=gpu("h100"), kv_cache={"dtype": "fp8"}
    ),
    "qwen 3 8b with 0.6b on the llm api of 1.4": deployment(
        model("Qwen/Qwen3-8B"),
        model("Qwen/Qwen3-0.6B"),
        gpu=gpu("h100"),
        backend="llmapi",
        tensorrt_llm="1.4.0rc1",
    ),
    "70b and 1b on the llm api of 1.2": deployment(
        model(LLAMA_70B, tensor_parallel=4),
        model(LLAMA_1B, tensor_parallel=4),
        gpu=gpu("h100", 4),
        backend="llmapi",
        kv_cache={"reuse": False},
    ),
    "gemma 7b": deployment(model("google/gemma-7b", tensor_parallel=2), gpu=gpu("l40s", 2)),
    "gemma 2 27b within its window": deployment(model("google/gemma-2-27b"), gpu=gpu("h100")),
    "phi 3 mini 4k within its window": deployment(model("microsoft/Phi-3-mini-4k-instruct"), gpu=gpu("l4")),
    "phi 3 mini 128k far out": deployment(
        model("microsoft/Phi-3-mini-128k-instruct"),
        gpu=gpu("h100"),
        limits={"max_batch_size": 1, "max_input_len": 60000, "max_output_len": 1024},
    ),
    "gpt 2": deployment(
        model("openai-community/gpt2", dtype="float16"),
        gpu=gpu("l4"),
        limits={"max_batch_size": 4, "max_input_len": 768, "max_output_len": 256},
    ),
}


def check(document: dict[str, Any], folder: Path) -> list[str]:
    for role in ("target", "draft"):
        if role in document:
            write_real_model(document[role]["checkpoint"], folder)
    path = folder / "real.yaml"
    path.write_text(yaml.safe_dump(document))
    report = check_target(str(path), CheckOptions(folder, strict=True))
    return [f"{f.code} {f.where} {f.cause}" for f in report.findings if f.severity != "note"]


def test_there_are_twenty_of_them() -> None:
    assert len(DEPLOYMENTS) >= 20


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_working_deployment_raises_no_alarm(name: str, tmp_path: Path) -> None:
    assert check(DEPLOYMENTS[name], tmp_path) == []


def test_llama_3_and_3_1_differ_in_reserved_tokens_only_and_that_is_no_error(tmp_path: Path) -> None:
    target, draft = "meta-llama/Meta-Llama-3-70B-Instruct", LLAMA_1B
    write_real_model(target, tmp_path, {"special": {0: "<s>", 1: "</s>", 8: "<|reserved_special_token_2|>"}})
    write_real_model(draft, tmp_path, LLAMA3_TOKENIZER)
    path = tmp_path / "real.yaml"
    path.write_text(yaml.safe_dump(deployment(model(target, tensor_parallel=4), model(draft), gpu=gpu("h100", 4))))
    report = check_target(str(path), CheckOptions(tmp_path))
    assert report.ok
    assert [finding.code for finding in report.findings if finding.severity == "warning"] == ["PAIR-SPECIAL"]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("draft", [True, False])
def test_repositories_of_every_shape_raise_no_alarm(streaming: bool, draft: bool, tmp_path: Path) -> None:
    build = tiny_build(tmp_path, tiny_config(draft=draft, serving={"streaming": streaming}))
    assert check_repository(build / "model_repository") == []


def test_a_repository_for_a_container_is_only_noted(tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    for path in (build / "model_repository").glob("*/config.pbtxt"):
        text = path.read_text().replace('"engines/', '"/models/engines/').replace('"tokenizer"', '"/models/tokenizer"')
        path.write_text(text)
    assert {finding.severity for finding in check_repository(build / "model_repository")} == {"note"}


def fill_as_nvidia_does(build: Path) -> None:
    """Make a repository look like one that NVIDIA's templates and fill_template.py give: optional options unfilled."""
    unfilled = ("max_tokens_in_paged_kv_cache", "lora_prefetch_dir", "medusa_choices", "kv_cache_host_memory_bytes")
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        path = build / "model_repository" / model / "config.pbtxt"
        entries = (
            f'parameters {{\n  key: "{key}"\n  value: {{\n    string_value: "${{{key}}}"\n  }}\n}}\n'
            for key in unfilled
        )
        path.write_text(path.read_text().replace('"engines/', '"/engines/') + "".join(entries))
    path = build / "model_repository" / "preprocessing" / "config.pbtxt"
    entry = 'parameters { key: "gpt_model_path" value { string_value: "/engines/target" } }\n'
    path.write_text(path.read_text() + entry)
    path = build / "model_repository" / "tensorrt_llm_bls" / "config.pbtxt"
    named = {
        "accumulate_tokens": "${accumulate_tokens}",
        "tensorrt_llm_model_name": "tensorrt_llm",
        "tensorrt_llm_draft_model_name": "tensorrt_llm_draft",
        "multimodal_encoders_name": "${multimodal_encoders_name}",
    }
    kept = re.sub(r"parameters \{.*?\n\}\n", "", path.read_text(), flags=re.S)
    entries = (f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in named.items())
    path.write_text(kept + "".join(entries))


def test_a_repository_of_nvidias_templates_is_only_noted(tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    fill_as_nvidia_does(build)
    found = check_repository(build / "model_repository")
    assert [f"{f.code} {f.cause}" for f in found if f.severity != "note"] == []


@pytest.mark.parametrize(
    ("written", "left"),
    [('backend: "tensorrtllm"', 'backend: "${triton_backend}"'), ("decoupled: true", "decoupled: ${decoupled_mode}")],
)
def test_what_those_templates_must_have_filled_in_is_still_an_error(written: str, left: str, tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    path = build / "model_repository" / "tensorrt_llm" / "config.pbtxt"
    assert written in path.read_text()
    path.write_text(path.read_text().replace(written, left))
    assert "PBTXT-PLACEHOLDER" in {finding.code for finding in check_repository(build / "model_repository")}


def test_a_build_directory_that_moved_raises_no_alarm(tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    moved = Path(shutil.move(build, tmp_path / "elsewhere"))
    assert check_repository(moved / "model_repository") == []


def test_an_unfinished_build_says_so(tmp_path: Path) -> None:
    build = tiny_build(tmp_path)
    (build / "manifest.json").unlink()
    assert [finding.code for finding in check_build(build)] == ["BUILD-MISSING"]
