"""Models whose layers slide: TensorRT-LLM's runtime is told their windows; no checkpoint and no engine carries them."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_checkpoint
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.config.load import parse_config
from trtkit.pipeline.attention_windows import attention_windows
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.run import BuildOptions
from trtkit.repository.pbtxt import parse_pbtxt


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return read_model_spec(tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama"))


@pytest.mark.parametrize(
    ("slides", "longest", "windows"),
    [
        ((True,) * 4, 100, (64,)),
        ((True,) * 4, 64, ()),
        ((False,) * 4, 100, ()),
        ((True, False) * 2, 100, (64, 100)),
        ((True, True, False, True, True, False), 100, (64, 64, 100)),
        ((True, True, False, True), 100, (64, 64, 100)),
        ((True, False, False, True), 100, (64, 100, 100)),
        ((False, True, True, True), 100, (100, 64, 64, 64)),
    ],
)
def test_the_list_is_as_short_as_what_repeats(
    slides: tuple[bool, ...], longest: int, windows: tuple[int, ...], spec: ModelSpec
) -> None:
    assert attention_windows(replace(spec, sliding_window=64, layer_is_sliding=slides), longest) == windows
    repeated = [windows[number % len(windows)] for number in range(len(slides))] if windows else []
    assert all(repeated[number] == (64 if slide else longest) for number, slide in enumerate(slides) if windows)


def test_a_model_without_windows_has_none(spec: ModelSpec) -> None:
    assert spec.sliding_window is None and attention_windows(spec, 10**6) == ()


@pytest.mark.parametrize(
    ("family", "backend", "longest", "written"),
    [
        ("mistral", "engine", 96, "16"),
        ("mistral", "engine", 16, None),
        ("gemma2", "engine", 96, "16,96"),
        ("mistral", "reference", 96, None),
        ("llama", "engine", 96, None),
    ],
)
def test_the_runtime_of_engines_is_told_the_windows(
    family: str, backend: str, longest: int, written: str | None, tmp_path: Path
) -> None:
    changes = {} if family == "llama" else {"sliding_window": 16}
    source = tiny_checkpoint(tmp_path / "model", family, tokenizer=True, **changes)
    document = {
        "name": "windows",
        "backend": backend,
        "gpu": {"name": "h100"},
        "target": {"checkpoint": str(source)},
        "limits": {"max_batch_size": 2, "max_input_len": longest - 8, "max_output_len": 8},
    }
    config = parse_config(document, where="windows")
    planned = dry_run(config, BuildOptions(cache=tmp_path, where="windows", out=tmp_path / "build"))
    texts = next(stage.texts for stage in planned if stage.stage == "repository")
    parameters = parse_pbtxt(texts["tensorrt_llm/config.pbtxt"], where="tensorrt_llm").parameters
    found = parameters["max_attention_window_size"].string_value if "max_attention_window_size" in parameters else None
    assert found == written
