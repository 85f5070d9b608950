"""The rendered repository: committed byte for byte, read back as protobuf, and free of what breaks deployments."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trtkit.config.load import load_config, parse_config
from trtkit.config.schema import BuildConfig
from trtkit.engines.inspect import EngineInfo
from trtkit.engines.spec import EngineSpec
from trtkit.errors import InputError
from trtkit.repository.llm_parameters import KvMemory
from trtkit.repository.pbtxt import parse_pbtxt
from trtkit.repository.render import TokenIds, render_repository, write_repository
from trtkit.serving.contract import contracts

SIX = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls", "tensorrt_llm_draft"]


def config(**changes: Any) -> BuildConfig:
    document = {
        "name": "x",
        "target": {"checkpoint": "t"},
        "draft": {"checkpoint": "d"},
        "speculation": {"kind": "draft_target", "max_draft_len": 4},
        **changes,
    }
    return parse_config({key: value for key, value in document.items() if value is not None}, where="x")


def engines(of: BuildConfig, *, built_draft_len: int | None = None) -> dict[str, EngineInfo]:
    lengths = {"target": of.max_draft_len if built_draft_len is None else built_draft_len, "draft": 0}
    return {
        role: EngineInfo(
            folder=Path("engines") / role,
            version=of.tensorrt_llm,
            architecture="LlamaForCausalLM",
            dtype=model.dtype,
            vocab_size=49152,
            world_size=model.tensor_parallel * model.pipeline_parallel,
            spec=EngineSpec(of.limits.max_batch_size, of.limits.max_input_len, of.limits.max_seq_len, lengths[role]),
            checkpoint=None,
        )
        for role, model in of.models.items()
    }


def render(of: BuildConfig, **options: Any) -> dict[str, str]:
    return render_repository(of, engines(of), TokenIds((2,), 2), **options)


def parameters(files: dict[str, str], model: str) -> dict[str, str]:
    message = parse_pbtxt(files[f"{model}/config.pbtxt"], where=model)
    return {key: value.string_value for key, value in message.parameters.items()}


def test_the_committed_repository_is_what_the_smallest_preset_renders(
    repository_root: Path, assert_golden: Callable[[str, Path], None]
) -> None:
    files = render(load_config(repository_root / "build_configs" / "smollm2_spec.yaml"))
    for path, text in files.items():
        assert_golden(text, repository_root / "model_repo" / path)
    committed = {path.relative_to(repository_root / "model_repo").as_posix() for path in tracked(repository_root)}
    assert committed == files.keys()


def tracked(root: Path) -> list[Path]:
    """Files of model_repo/, without the bytecode that a server leaves there."""
    return [path for path in (root / "model_repo").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(config()) == render(config())


def test_a_build_with_a_draft_has_six_models_and_one_without_has_five() -> None:
    def models(files: dict[str, str]) -> list[str]:
        return sorted({path.split("/")[0] for path in files})

    assert models(render(config())) == SIX
    assert models(render(config(draft=None, speculation=None))) == SIX[:-1]


@pytest.mark.parametrize("version", ["0.17.0", "0.21.0", "1.2.1"])
def test_every_config_says_the_tensors_of_the_contract(version: str) -> None:
    files = render(config(tensorrt_llm=version))
    for name, contract in contracts(version, with_draft=True).items():
        message = parse_pbtxt(files[f"{name}/config.pbtxt"], where=name)
        assert message.name == name
        for written, declared in ((message.input, contract.inputs), (message.output, contract.outputs)):
            assert [(t.name, tuple(t.dims)) for t in written] == [(t.name, t.dims) for t in declared]
        assert [t.optional for t in message.input] == [t.optional for t in contract.inputs]
        assert [t.HasField("reshape") for t in message.input] == [t.scalar for t in contract.inputs]


def test_a_model_file_is_one_import_line() -> None:
    shims = {path: text for path, text in render(config()).items() if path.endswith("model.py")}
    assert len(shims) == 3
    for text in shims.values():
        assert re.fullmatch(r"from trtkit\.serving\.\w+ import \w+ as TritonPythonModel  # noqa: F401\n", text)


def test_nothing_rendered_is_a_placeholder_or_an_absolute_path() -> None:
    for path, text in render(config()).items():
        assert "${" not in text, path
        assert not re.search(r'"/\w', text), path


def test_the_engines_are_served_by_the_tensorrt_llm_backend_from_relative_folders() -> None:
    files = render(config())
    for model, folder in (("tensorrt_llm", "engines/target"), ("tensorrt_llm_draft", "engines/draft")):
        assert parse_pbtxt(files[f"{model}/config.pbtxt"], where=model).backend == "tensorrtllm"
        assert parameters(files, model)["gpt_model_path"] == folder


@pytest.mark.parametrize("streaming", [True, False])
def test_streaming_makes_engines_and_bls_decoupled_alike(streaming: bool) -> None:
    files = render(config(serving={"streaming": streaming}))
    for model in ("tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"):
        message = parse_pbtxt(files[f"{model}/config.pbtxt"], where=model)
        assert message.model_transaction_policy.decoupled == streaming, model


@pytest.mark.parametrize("reuse", [True, False])
def test_reuse_is_always_said(reuse: bool) -> None:
    files = render(config(kv_cache={"reuse": reuse}))
    assert parameters(files, "tensorrt_llm")["enable_kv_cache_reuse"] == str(reuse).lower()


def test_two_models_share_one_gpu_unless_told_otherwise() -> None:
    key = "kv_cache_free_gpu_mem_fraction"
    files = render(config())
    assert [parameters(files, model)[key] for model in ("tensorrt_llm", "tensorrt_llm_draft")] == ["0.45", "0.45"]
    planned = render(config(), kv_memory={"target": KvMemory(0.7, 4096), "draft": KvMemory(0.2)})
    assert [parameters(planned, model)[key] for model in ("tensorrt_llm", "tensorrt_llm_draft")] == ["0.7", "0.2"]
    assert parameters(planned, "tensorrt_llm")["max_tokens_in_paged_kv_cache"] == "4096"
    assert "max_tokens_in_paged_kv_cache" not in parameters(planned, "tensorrt_llm_draft")
    assert parameters(render(config(draft=None, speculation=None)), "tensorrt_llm")[key] == "0.9"


@pytest.mark.parametrize(("count", "draft", "fraction"), [(8, "4", "0.9"), (4, "0", "0.45")])
def test_a_draft_has_a_gpu_of_its_own_where_there_are_enough(count: int, draft: str, fraction: str) -> None:
    gpu = {"gpu": {"name": "h100-sxm-80gb", "count": count}, "target": {"checkpoint": "t", "tensor_parallel": 4}}
    of_target, of_draft = (parameters(render(config(**gpu)), name) for name in ("tensorrt_llm", "tensorrt_llm_draft"))
    assert (of_target["gpu_device_ids"], of_draft["gpu_device_ids"]) == ("0,1,2,3", draft)
    for written in (of_target, of_draft):
        assert written["kv_cache_free_gpu_mem_fraction"] == fraction


def test_draft_logits_go_over_mpi_between_processes_that_are_named() -> None:
    gpu = {"gpu": {"name": "h100-sxm-80gb", "count": 8}, "target": {"checkpoint": "t", "tensor_parallel": 4}}
    logits = {"speculation": {"kind": "draft_target", "acceptance": "logits"}}
    files = render(config(backend="engine", **gpu, **logits))
    of_target, of_draft = (parameters(files, name) for name in ("tensorrt_llm", "tensorrt_llm_draft"))
    assert (of_draft["participant_ids"], of_target["participant_ids"]) == ("1", "2,3,4,5")
    assert of_target["speculative_decoding_fast_logits"] == of_draft["speculative_decoding_fast_logits"] == "true"
    for other in (config(backend="reference", **logits), config(backend="engine", **gpu)):
        assert "participant_ids" not in parameters(render(other), "tensorrt_llm")
        assert "speculative_decoding_fast_logits" not in parameters(render(other), "tensorrt_llm")


def test_devices_are_named_only_for_a_known_gpu() -> None:
    gpu = {"gpu": {"name": "h100-sxm-80gb", "count": 4}, "target": {"checkpoint": "t", "tensor_parallel": 4}}
    assert parameters(render(config(**gpu)), "tensorrt_llm")["gpu_device_ids"] == "0,1,2,3"
    assert "gpu_device_ids" not in parameters(render(config()), "tensorrt_llm")


def test_the_runtimes_own_sinks_are_written_and_rolling_ones_are_not() -> None:
    sinks = {"sink_tokens": 4, "window_tokens": 1020}
    engine = config(draft=None, speculation=None, attention_sinks={**sinks, "strategy": "engine"})
    written = parameters(render(engine), "tensorrt_llm")
    assert (written["sink_token_length"], written["max_attention_window_size"]) == ("4", "1024")
    assert "sink_token_length" not in parameters(render(config()), "tensorrt_llm")


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"speculation": {"kind": "draft_target", "max_draft_len": 7}}, "max_draft_len", "7"),
        (
            {"speculation": {"kind": "draft_target", "max_draft_len": 4, "acceptance": "logits"}},
            "use_draft_logits",
            "true",
        ),
        ({}, "use_draft_logits", "false"),
        ({}, "vocab_size", "49152"),
        (
            {"speculation": {"kind": "draft_target", "max_draft_len": 4, "adaptive": True}},
            "adaptive_draft_length",
            "true",
        ),
        ({"limits": {"max_input_len": 100, "max_output_len": 20}}, "max_seq_len", "120"),
        ({"tensorrt_llm": "0.21.0"}, "tensorrt_llm_version", "0.21.0"),
    ],
)
def test_the_bls_model_knows_the_builds_choices(changes: dict[str, Any], key: str, value: str) -> None:
    assert parameters(render(config(**changes)), "tensorrt_llm_bls")[key] == value


def test_rolling_sinks_reach_the_bls_model_and_evict_whole_blocks() -> None:
    sinks = {"sink_tokens": 4, "window_tokens": 1020}
    written = parameters(render(config(attention_sinks=sinks)), "tensorrt_llm_bls")
    assert (written["sink_tokens"], written["window_tokens"], written["evict_tokens"]) == ("4", "1020", "224")
    chosen = parameters(render(config(attention_sinks={**sinks, "evict_tokens": 100})), "tensorrt_llm_bls")
    assert chosen["evict_tokens"] == "100"
    assert "window_tokens" not in parameters(render(config()), "tensorrt_llm_bls")


@pytest.mark.parametrize("window_tokens", [4, 5000])
def test_a_window_that_no_request_fits_into_is_refused(window_tokens: int) -> None:
    with pytest.raises(InputError, match="SINK-WINDOW"):
        render(config(attention_sinks={"sink_tokens": 4, "window_tokens": window_tokens}))


def test_several_end_ids_are_all_written() -> None:
    files = render_repository(config(), engines(config()), TokenIds((2, 7), 0))
    for model in ("preprocessing", "tensorrt_llm_bls"):
        assert (parameters(files, model)["end_ids"], parameters(files, model)["pad_id"]) == ("2,7", "0")


def test_a_target_engine_that_accepts_fewer_drafts_than_the_config_asks_for_is_refused() -> None:
    with pytest.raises(InputError, match=r"SPEC-K: .*the target engine accepts 0 draft tokens"):
        render_repository(config(), engines(config(), built_draft_len=0), TokenIds((2,), 2))


def test_missing_engines_are_named() -> None:
    with pytest.raises(InputError, match=r"REPO-ENGINES: .*\['draft', 'target'\].*\['target'\]"):
        render_repository(config(), {"target": engines(config())["target"]}, TokenIds((2,), 2))


def test_files_are_written_below_the_folder_given(tmp_path: Path) -> None:
    files = render(config())
    write_repository(files, tmp_path / "repo")
    for path, text in files.items():
        assert (tmp_path / "repo" / path).read_text() == text
