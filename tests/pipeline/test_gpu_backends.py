"""Builds for GPUs from conversion to launch scripts, with the contract checker in the place of trtllm-build."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import contract_trtllm_build
import pytest
import yaml
from tiny import tiny_checkpoint
from trtkit.builds import open_build
from trtkit.checking.folder_checks import check_build
from trtkit.checkpoints.quantized import read_quantized
from trtkit.config.load import load_config
from trtkit.doctor import inspect_machine
from trtkit.doctor.facts import GpuDevice, GpuDriver
from trtkit.engines.build import BuildTools
from trtkit.engines.cache import cache_size
from trtkit.engines.inspect import read_engine
from trtkit.engines.release import find_release
from trtkit.engines.runner import Runner, choose_runner, pinned_image, wrapped
from trtkit.engines.workers import HostRoom
from trtkit.errors import BuildError, InputError, MissingToolError
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.engine_backend import find_tools
from trtkit.pipeline.run import BuildOptions, BuildReport, build, prepare
from trtkit.progress import silent
from trtkit.repository.pbtxt import parse_pbtxt

ENGINE_STAGES = ["check", "convert target", "convert draft", "engine target", "engine draft", "tokenizer", "repository"]


class Site:
    """A tiny pair, a YAML for one H100, and a machine whose trtllm-build is the contract checker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny_checkpoint(folder / "target", tokenizer=True)
        tiny_checkpoint(folder / "draft", tokenizer=True, num_hidden_layers=1)
        self.config_file = folder / "tiny.yaml"
        self.config_file.write_text(yaml.safe_dump(self.document()))

    def document(self) -> dict[str, object]:
        return {
            "name": "tiny",
            "backend": "engine",
            "tensorrt_llm": "1.2.1",
            "gpu": {"name": "h100-sxm-80gb", "count": 2},
            "target": {"checkpoint": str(self.folder / "target"), "dtype": "bfloat16", "tensor_parallel": 2},
            "draft": {"checkpoint": str(self.folder / "draft"), "dtype": "bfloat16"},
            "speculation": {"kind": "draft_target", "max_draft_len": 2},
            "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 32},
        }

    def options(self, *, version: str = "1.2.1", sm: int = 90, **choices: object) -> BuildOptions:
        program = contract_trtllm_build.install(self.folder / version, version, sm)
        release = find_release(version)
        assert release is not None
        runner = choose_runner("local", release, str(program.parent))
        tools = BuildTools(runner, self.folder / "cache" / "engines", HostRoom(2, 1 << 40))
        os.environ["PATH"] = f"{program.parent}:/usr/bin:/bin"
        return BuildOptions(
            cache=self.folder / "cache",
            where="tiny.yaml",
            out=self.folder / "build",
            tools=tools,
            **choices,  # type: ignore[arg-type]
        )

    def build(self, *overrides: str, **choices: object) -> BuildReport:
        return build(load_config(self.config_file, overrides), self.options(**choices))  # type: ignore[arg-type]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # put back after the test
    return Site(tmp_path)


def skipped(report: BuildReport) -> list[str]:
    return [stage.stage for stage in report.stages if stage.skipped]


def test_a_build_for_engines_ends_with_engines_repository_and_launch_scripts(site: Site) -> None:
    report = site.build()
    assert [stage.stage for stage in report.stages] == ENGINE_STAGES
    target, draft = (read_engine(report.out / "engines" / role) for role in ("target", "draft"))
    assert (target.world_size, target.spec.max_draft_len, target.rank_files) == (2, 2, ("rank0.engine", "rank1.engine"))
    assert (draft.world_size, draft.spec.max_draft_len) == (1, 0)
    assert target.checkpoint is None
    assert "orchestrator mode" in (report.out / "launch" / "serve.sh").read_text()
    logs = {role: (report.out / "logs" / f"engine-{role}.log").read_text() for role in ("target", "draft")}
    assert logs["target"].startswith("$ trtllm-build")
    timings = (site.folder / "cache" / "engines" / "timing" / "1.2.1-sm90.cache").resolve()
    assert all(f"--input_timing_cache {timings}" in log for log in logs.values()) and timings.exists()
    assert open_build(report.out).manifest["backend"] == "engine"
    assert report.next_command == f"sh {report.out}/launch/serve.sh"


@pytest.mark.parametrize(
    ("overrides", "reuse"),
    [
        (("draft=null", "speculation={kind: none}", "kv_cache.dtype=fp8"), {"tensorrt_llm": "false"}),
        (("draft=null", "speculation={kind: none}"), {"tensorrt_llm": "true"}),
        ((), {"tensorrt_llm": "true", "tensorrt_llm_draft": "true"}),
    ],
)
def test_the_repository_reuses_blocks_where_the_builder_left_that_on(
    site: Site, overrides: tuple[str, ...], reuse: dict[str, str]
) -> None:
    config = load_config(site.config_file, overrides)
    planned = next(stage for stage in dry_run(config, site.options()) if stage.stage == "repository")
    report = site.build(*overrides)
    for model, value in reuse.items():
        text = (report.out / "model_repository" / model / "config.pbtxt").read_text()
        assert parse_pbtxt(text, where=model).parameters["enable_kv_cache_reuse"].string_value == value
        assert text == planned.texts[f"{model}/config.pbtxt"]
    assert "KV-REUSE" not in {finding.code for finding in check_build(report.out)}


def test_a_second_build_skips_everything_and_needs_no_builder(site: Site) -> None:
    site.build()
    options = dataclasses.replace(site.options(), tools=None)
    os.environ["PATH"] = "/usr/bin:/bin"
    assert skipped(build(load_config(site.config_file), options)) == ENGINE_STAGES[1:]


def test_a_dry_run_names_exactly_the_files_that_a_build_writes(site: Site) -> None:
    planned = dry_run(load_config(site.config_file), site.options())
    report = site.build()
    for stage in planned:
        written = {p.relative_to(stage.out).as_posix() for p in stage.out.rglob("*") if p.is_file()}
        assert written - {".trtkit-stage.json"} == set(stage.files), stage.stage
        for name, text in stage.texts.items():
            assert (stage.out / name).read_text() == text
    assert (report.out / "launch").is_dir()


@pytest.mark.parametrize(
    ("override", "rebuilt"),
    [
        ("limits.max_batch_size=4", ["engine target", "engine draft"]),
        ("speculation.max_draft_len=3", ["engine target"]),
        ("gpu.name=l4", ["engine target", "engine draft"]),
        ("tensorrt_llm=1.2.0", ["engine target", "engine draft"]),
        ("serving.streaming=false", []),
    ],
)
def test_engines_are_built_anew_only_when_something_that_decides_them_changes(
    site: Site, override: str, rebuilt: list[str]
) -> None:
    site.build()
    version = override.removeprefix("tensorrt_llm=") if override.startswith("tensorrt_llm") else "1.2.1"
    again = site.build(override, version=version, sm=89 if override == "gpu.name=l4" else 90)
    assert [s.stage for s in again.stages if not s.skipped and s.stage.startswith("engine")] == rebuilt


def test_an_engine_that_was_built_before_comes_from_the_cache(site: Site) -> None:
    site.build()
    site.build("limits.max_batch_size=4")
    (site.folder / "build" / "logs" / "engine-target.log").unlink()
    report = site.build()
    assert "engine target" not in skipped(report)
    assert not (report.out / "logs" / "engine-target.log").exists()
    assert read_engine(report.out / "engines" / "target").spec.max_batch_size == 2
    size = cache_size(site.folder / "cache" / "engines")
    assert (size.num_engines, size.bytes > 0) == (4, True), "two builds of two engines"
    assert cache_size(site.folder / "nothing").bytes == 0


def test_a_failed_engine_keeps_the_stages_before_it(site: Site) -> None:
    options = site.options()
    program = site.folder / "1.2.1" / "trtllm-build"
    program.write_text("#!/bin/sh\necho 'torch.OutOfMemoryError: CUDA out of memory'\nexit 1\n")
    with pytest.raises(BuildError) as error:
        build(load_config(site.config_file), options)
    assert (error.value.code, error.value.exit_code) == ("BUILD-GPU-OOM", 4)
    assert not (site.folder / "build" / "engines" / "target").exists()
    assert "convert target" in skipped(site.build())


def test_an_interrupted_builder_is_stopped_and_the_next_build_goes_on(site: Site) -> None:
    site.options()
    program = site.folder / "1.2.1" / "trtllm-build"
    marker = site.folder / "started"
    program.write_text(f"#!/bin/sh\ntouch {marker}\nexec sleep 60\n")
    child = subprocess.Popen([sys.executable, "-P", "-c", _BUILD, str(site.config_file), str(site.folder)])
    while not marker.exists():
        assert child.poll() is None, "the build ended before it started the builder"
    child.send_signal(signal.SIGINT)
    assert child.wait(30) != 0
    assert not (site.folder / "build" / "engines" / "target").exists()
    assert "convert target" in skipped(site.build())


_BUILD = """
import os, sys
from pathlib import Path
from trtkit.config.load import load_config
from trtkit.engines.build import BuildTools
from trtkit.engines.runner import Runner
from trtkit.engines.workers import HostRoom
from trtkit.pipeline.run import BuildOptions, build
config, folder = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["PATH"] = f"{folder}/1.2.1:/usr/bin:/bin"
tools = BuildTools(Runner("local"), folder / "cache" / "engines", HostRoom(2, 1 << 40))
build(load_config(config), BuildOptions(cache=folder / "cache", where="t", out=folder / "build", tools=tools))
"""


FP8 = ("target.quantization=fp8", "draft.quantization=fp8", "kv_cache.dtype=fp8")


def write_calibration(site: Site, role: str, layers: int, largest: float = 8.0) -> None:
    """What `trtkit calibrate` leaves in the build directory, with one maximum for everything."""
    parts = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    modules = [f"model.layers.{layer}.{part}" for layer in range(layers) for part in parts]
    document = {
        "schema": "trtkit.calibration/1",
        "inputs": dict.fromkeys(modules, largest),
        "kv_cache": {str(layer): {"k": largest, "v": largest} for layer in range(layers)},
    }
    file = site.folder / "build" / "calibration" / role / "calibration.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))


def write_texts(path: Path) -> Path:
    rows = ({"token_ids": [*range(3 + number, 51 + number)]} for number in range(4))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_fp8_pair_is_calibrated_by_its_build(site: Site) -> None:
    report = site.build(*FP8, f"calibration.prompts={write_texts(site.folder / 'texts.jsonl')}")
    assert [stage.stage for stage in report.stages][1:3] == ["calibrate target", "calibrate draft"]
    assert read_engine(report.out / "engines" / "target").spec.quantization == "fp8"
    assert "CALIB-FEW" in {finding.code for finding in report.findings}


def test_an_fp8_pair_is_built_from_its_calibration(site: Site) -> None:
    write_calibration(site, "target", 3)
    write_calibration(site, "draft", 1)
    report = site.build(*FP8)
    target = read_engine(report.out / "engines" / "target")
    assert (target.spec.quantization, target.spec.kv_dtype, target.paged_context_fmha) == ("fp8", "fp8", True)
    assert skipped(site.build(*FP8)) == ENGINE_STAGES[1:]
    write_calibration(site, "draft", 1, largest=4.0)
    again = site.build(*FP8)
    assert not {"convert draft", "engine draft"} & set(skipped(again)), "other scales are another engine"
    assert {"convert target", "engine target"} <= set(skipped(again))


def test_a_draft_gets_as_many_logits_as_its_target(site: Site) -> None:
    larger = tiny_checkpoint(site.folder / "larger", tokenizer=True, vocab_size=352)
    report = site.build(f"target.checkpoint={larger}", "speculation.pad_draft_vocab=true")
    sizes = {}
    for role in ("target", "draft"):
        sizes[role] = json.loads((report.out / "checkpoints" / role / "config.json").read_text())["vocab_size"]
        assert read_engine(report.out / "engines" / role).vocab_size == 352
    assert sizes == {"target": 352, "draft": 352}
    again = site.build(f"target.checkpoint={larger}", "speculation.pad_draft_vocab=false")
    assert {"convert target", "engine target"} <= set(skipped(again))
    assert not {"convert draft", "engine draft"} & set(skipped(again))


def test_another_backend_takes_the_scripts_away_again(site: Site) -> None:
    site.build()
    report = site.build("backend=reference", "target.tensor_parallel=1")
    assert not (report.out / "launch" / "serve.sh").exists()
    assert report.next_command == f"trtkit serve {report.out}"


@pytest.mark.parametrize(("version", "set_there"), [("1.0.0", True), ("1.1.0", False)])
def test_a_known_bug_of_pipeline_parallelism_is_worked_around(site: Site, version: str, set_there: bool) -> None:
    alone = ("draft=null", "speculation={kind: none}", "target.tensor_parallel=1", "target.pipeline_parallel=2")
    report = site.build("backend=llmapi", f"tensorrt_llm={version}", *alone, version=version)
    script = (report.out / "launch" / "serve.sh").read_text()
    assert ("export TRTLLM_LLAMA_EAGER_FUSION_DISABLED=1" in script) == set_there


def test_a_container_runs_the_same_command_with_its_folders_inside(site: Site) -> None:
    """A `docker` that runs what follows the image: the mounts name every folder that the command does."""
    options = site.options()
    docker = site.folder / "1.2.1" / "docker"
    docker.write_text('#!/bin/sh\nwhile [ "$1" != "image" ]; do echo "$1"; shift; done\nshift\nexec "$@"\n')
    docker.chmod(0o755)
    assert options.tools is not None
    tools = dataclasses.replace(options.tools, runner=Runner("docker", "docker", "image"))
    report = build(load_config(site.config_file), dataclasses.replace(options, tools=tools))
    log = (report.out / "logs" / "engine-target.log").read_text().splitlines()
    mounted = {line.split(":")[0] for line in log if line.startswith(str(site.folder)) and ":" in line}
    assert {str((report.out / "checkpoints" / "target").resolve())} <= mounted
    assert read_engine(report.out / "engines" / "target").version == "1.2.1"


def test_the_image_that_built_the_engines_is_pinned_by_its_digest(site: Site) -> None:
    """Tags move; the script that serves in a container, and the manifest, name what the engines were built in."""
    options, pinned = site.options(), "registry/tritonserver@sha256:" + "0" * 64
    docker = site.folder / "1.2.1" / "docker"
    answer = f'if [ "$1 $2" = "image inspect" ]; then echo \'["{pinned}"]\'; exit; fi\n'
    docker.write_text("#!/bin/sh\n" + answer + 'while [ "$1" != "image" ]; do shift; done\nshift\nexec "$@"\n')
    docker.chmod(0o755)
    assert options.tools is not None
    tools = dataclasses.replace(options.tools, runner=Runner("docker", "docker", "image"))
    report = build(load_config(site.config_file), dataclasses.replace(options, tools=tools))
    assert json.loads((report.out / "manifest.json").read_text())["launch"]["pinned_image"] == pinned
    assert pinned in (report.out / "launch" / "serve-container.sh").read_text()


@pytest.mark.parametrize("says", ["null", "[]", "no JSON", "exit 1"])
def test_an_image_without_a_digest_is_pinned_to_none(says: str, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{says if says == 'exit 1' else f'echo {says!r}'}\n")
    program.chmod(0o755)
    assert pinned_image(Runner("docker", str(program), "image")) is None
    assert pinned_image(Runner("local")) is None


def test_the_container_command_is_exact() -> None:
    command = wrapped(["trtllm-build", "--x"], Runner("docker", "docker", "image:tag"), [Path("/a"), Path("/b")])
    assert " ".join(command) == (
        "docker run --rm --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 "
        "--volume /a:/a --volume /b:/b image:tag trtllm-build --x"
    )


@pytest.mark.parametrize(
    ("sm", "installed", "code"),
    [(None, "1.2.1", "GPU-MISSING"), (80, "1.2.1", "RUN-SM"), (90, "1.1.0", "RUN-VERSION"), (90, None, "TRTLLM-BUILD")],
)
def test_a_machine_that_cannot_build_the_engines_says_why(
    site: Site, monkeypatch: pytest.MonkeyPatch, sm: int | None, installed: str | None, code: str
) -> None:
    request, _ = prepare(load_config(site.config_file), site.options(), silent)
    machine = inspect_machine()
    driver = GpuDriver("580.1", "13.1", (GpuDevice("GPU", 80 << 30, sm),) * 2) if sm else None
    packages = {**machine.packages, "tensorrt-llm": installed}
    there = dataclasses.replace(machine, gpu=driver, packages=packages)
    if installed is None:
        monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingToolError) as error:
        find_tools(request, there, "local", site.folder)
    assert (error.value.code, error.value.exit_code) == (code, 3)


def test_the_builder_of_a_container_is_known_by_its_fourth_number(site: Site) -> None:
    request, _ = prepare(load_config(site.config_file, ["tensorrt_llm=1.0.3"]), site.options(version="1.0.3"), silent)
    machine = inspect_machine()
    there = dataclasses.replace(
        machine,
        gpu=GpuDriver("580.1", "13.1", (GpuDevice("GPU", 80 << 30, 90),) * 2),
        packages={**machine.packages, "tensorrt-llm": "1.0.3.2510"},
    )
    assert find_tools(request, there, "local", site.folder).room.num_gpus == 2


def test_a_machine_that_can_build_them_has_its_room_counted(site: Site) -> None:
    request, _ = prepare(load_config(site.config_file), site.options(), silent)
    machine = inspect_machine()
    driver = GpuDriver("580.1", "13.1", (GpuDevice("GPU", 80 << 30, 90),) * 2)
    packages = {**machine.packages, "tensorrt-llm": "1.2.1"}
    tools = find_tools(request, dataclasses.replace(machine, gpu=driver, packages=packages), "local", site.folder)
    assert (tools.room.num_gpus, tools.runner.name) == (2, "local")
    assert tools.room.free_bytes == machine.memory.available_bytes


def test_a_build_for_the_llm_api_needs_no_conversion_and_no_gpu(site: Site) -> None:
    report = site.build("backend=llmapi", "draft.tensor_parallel=2", "kv_cache.reuse=false")
    assert [stage.stage for stage in report.stages] == ["check", "tokenizer", "repository"]
    document = yaml.safe_load((report.out / "model_repository/tensorrt_llm/1/model.yaml").read_text())
    assert document["model"] == str(site.folder / "target")
    assert document["speculative_config"]["speculative_model_dir"] == str(site.folder / "draft")
    assert {path.name for path in (report.out / "launch").iterdir()} == {
        *("serve.sh", "serve-container.sh", "trtllm-serve.sh", "trtllm-serve.yaml"),
    }
    container = (report.out / "launch" / "serve-container.sh").read_text()
    assert f"{site.folder}/target:{site.folder}/target:ro" in container


def test_a_build_for_the_llm_api_is_checked_for_what_it_holds(site: Site) -> None:
    report = site.build("backend=llmapi", "draft.tensor_parallel=2", "kv_cache.reuse=false")
    errors = {finding.code for finding in check_build(report.out) if finding.severity == "error"}
    assert errors == {"RUN-RUNTIME"}, "this machine has no TensorRT-LLM, and nothing else is amiss"
    (report.out / "launch" / "serve.sh").unlink()
    assert "REPO-PROGRAM" in {finding.code for finding in check_build(report.out)}


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("tensorrt_llm=0.21.0", "VERSION-LLMAPI"),
        ("target.quantization=int8_weight_only", "LLMAPI-QUANT"),
        ("speculation.adaptive=true", "LLMAPI-ADAPTIVE"),
        ("draft.dtype=float16", "LLMAPI-DRAFT"),
        ("attention_sinks={window_tokens: 32}", "SINK-LLMAPI"),
    ],
)
def test_what_the_llm_api_cannot_serve_is_refused(site: Site, override: str, code: str) -> None:
    with pytest.raises(InputError) as error:
        site.build("backend=llmapi", "draft.tensor_parallel=2", override)
    assert str(error.value.code) in code.split() and error.value.exit_code == 2


def test_a_checkpoint_is_quantised_for_the_llm_api_before_it_is_served(site: Site) -> None:
    overrides = ("backend=llmapi", "draft.tensor_parallel=2", "kv_cache.reuse=false", "target.quantization=fp8")
    overrides += (f"calibration.prompts={write_texts(site.folder / 'texts.jsonl')}",)
    planned = dry_run(load_config(site.config_file, overrides), site.options())
    report = site.build(*overrides)
    names = [stage.stage for stage in report.stages]
    assert names == ["check", "calibrate target", "convert target", "tokenizer", "repository"]
    document = yaml.safe_load((report.out / "model_repository/tensorrt_llm/1/model.yaml").read_text())
    assert document["model"] == "checkpoints/target", "seen from the build directory, in which the server runs"
    assert document["speculative_config"]["speculative_model_dir"] == str(site.folder / "draft")
    written = report.out / "checkpoints" / "target"
    quantized = read_quantized(written)
    assert quantized is not None and quantized.algorithm == "FP8"
    files = {path.name for path in written.iterdir()} - {".trtkit-stage.json"}
    assert {"model.safetensors", "tokenizer.json"} <= files
    assert files == set(next(stage.files for stage in planned if stage.stage == "convert target"))
    assert all(stage.skipped for stage in site.build(*overrides).stages if stage.stage != "check")
    errors = {finding.code for finding in check_build(report.out) if finding.severity == "error"}
    assert errors == {"RUN-RUNTIME"}, "this machine has no TensorRT-LLM, and nothing else is amiss"
    (written / "model.safetensors").write_bytes((written / "model.safetensors").read_bytes()[:-64])
    assert "CKPT-TRUNCATED" in {finding.code for finding in check_build(report.out)}


def test_weights_that_are_stored_quantised_are_recognised(site: Site) -> None:
    config = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (site.folder / "target" / "hf_quant_config.json").write_text(json.dumps(config))
    overrides = ("backend=llmapi", "draft.tensor_parallel=2", "kv_cache.reuse=false", "target.quantization=fp8")
    assert site.build(*overrides).manifest is not None
    (site.folder / "target" / "hf_quant_config.json").write_text("{}")
    with pytest.raises(InputError, match="does not say how the weights are quantised"):
        site.build(*overrides)


def test_auto_takes_what_this_machine_can_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(site.config_file, ["backend=auto", "target.tensor_parallel=1"])
    machine = inspect_machine()
    options = BuildOptions(cache=site.folder / "cache", where="t", out=site.folder / "build")
    without = dataclasses.replace(machine, gpu=None)
    monkeypatch.setattr("trtkit.pipeline.run.inspect_machine", lambda: without)
    assert prepare(config, options, silent)[0].config.backend == "reference"
    driver = GpuDriver("580.1", "13.1", (GpuDevice("GPU", 80 << 30, 90),))
    there = dataclasses.replace(
        machine,
        gpu=driver,
        packages={**machine.packages, "tensorrt-llm": "1.2.1"},
        trtllm_build=Path("/bin/trtllm-build"),
    )
    monkeypatch.setattr("trtkit.pipeline.run.inspect_machine", lambda: there)
    assert prepare(config, options, silent)[0].config.backend == "engine"


def test_the_manifest_says_how_and_where_the_server_is_started(site: Site) -> None:
    manifest = json.loads((site.build().out / "manifest.json").read_text())
    assert manifest["sm"] == 90
    launch = manifest["launch"]
    assert launch["mode"] == "orchestrator" and "2 and 1 ranks" in launch["reason"]
    assert launch["image"].endswith("tritonserver:26.07-trtllm-python-py3")
