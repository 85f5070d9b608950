"""The engine stage against the contract checker: what it runs, keeps, proves, and says when something is wrong."""

import dataclasses
import json
import shutil
from pathlib import Path

import contract_trtllm_build
import pytest
from known_models import write_known_model
from trtkit.checkpoints.model_spec import read_model_spec
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.engines.build import BuildTools, EngineJob, build_engine
from trtkit.engines.cache import store
from trtkit.engines.inspect import check_rank_files, read_engine
from trtkit.engines.release import Release, find_release, releases
from trtkit.engines.runner import choose_runner
from trtkit.engines.spec import EngineSpec
from trtkit.engines.workers import HostRoom
from trtkit.errors import BuildError, InputError, MissingToolError, TrtkitError
from trtkit.progress import Progress, silent

TARGET = EngineSpec(
    max_batch_size=8,
    max_input_len=8192,
    max_seq_len=10240,
    max_draft_len=5,
    kv_dtype="fp8",
    quantization="fp8",
    speculates=True,
    sm=90,
)
ROOM = HostRoom(num_gpus=4, free_bytes=1 << 40)


class Desk:
    """A machine with the contract checker on its PATH and a converted Llama-3.3-70B without weights."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.out = folder / "engine"
        self.log = folder / "logs" / "engine-target.log"
        self.bin = folder / "bin"
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        source = write_known_model("meta-llama/Llama-3.3-70B-Instruct", folder)
        self.checkpoint = self.convert(source, quantization="fp8", kv_cache_dtype="fp8", tensor_parallel=4)

    def convert(self, source: Path, **options: object) -> Path:
        out = self.folder / "checkpoint"
        out.mkdir(exist_ok=True)
        chosen = ConversionOptions(dtype="bfloat16", **options)  # type: ignore[arg-type]
        document = checkpoint_config(read_model_spec(source), chosen)
        (out / "config.json").write_text(json.dumps(document))
        for rank in range(document["mapping"]["world_size"]):
            (out / f"rank{rank}.safetensors").touch()
        return out

    def build(
        self, version: str = "1.2.1", spec: EngineSpec = TARGET, installed: str | None = None, sm: int = 90
    ) -> list[Progress]:
        """Build for `version` with a builder of the same version, or of `installed`."""
        release = _release(version)
        contract_trtllm_build.install(self.bin, installed or version, sm)
        tools = BuildTools(choose_runner("local", release), self.folder / "cache", ROOM)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        events: list[Progress] = []
        job = EngineJob("target", spec, release, self.checkpoint, "digest", self.log)
        build_engine(job, tools, self.out, events.append)
        return events


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def _release(version: str) -> Release:
    release = find_release(version)
    assert release is not None
    return release


@pytest.mark.parametrize("version", [release.version for release in releases() if release.build])
def test_every_release_builds_what_was_asked_for(desk: Desk, version: str) -> None:
    desk.build(version)
    info = read_engine(desk.out)
    assert (info.version, info.architecture, info.world_size) == (version, "LlamaForCausalLM", 4)
    assert dataclasses.replace(info.spec, sm=90) == TARGET
    assert info.paged_context_fmha
    check_rank_files(info)


def test_the_log_holds_the_command_and_progress_is_counted_in_steps(desk: Desk) -> None:
    events = desk.build()
    assert desk.log.read_text().startswith("$ trtllm-build --checkpoint_dir")
    assert [(e.done, e.total) for e in events] == [(n, 12) for n in range(1, 13)]
    assert {e.stage for e in events} == {"engine target"}


def test_the_second_build_comes_from_the_cache_without_running_anything(desk: Desk) -> None:
    desk.build()
    first = (desk.out / "config.json").read_text()
    desk.log.unlink()
    assert desk.build() == []
    assert (desk.out / "config.json").read_text() == first
    assert not desk.log.exists()


@pytest.mark.parametrize("changes", [{"max_batch_size": 4}, {"max_draft_len": 3}, {"sm": 89}, {"block_size": 64}])
def test_a_changed_request_is_built_anew(desk: Desk, changes: dict[str, int]) -> None:
    desk.build()
    desk.log.unlink()
    desk.build(spec=dataclasses.replace(TARGET, **changes))  # type: ignore[arg-type]
    assert desk.log.exists()


@pytest.mark.parametrize("error", [BuildError("another process is writing it", "wait"), OSError(30, "Read-only")])
def test_an_engine_of_hours_is_not_lost_because_the_cache_does_not_take_it(
    desk: Desk, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("trtkit.engines.build.store", refuse)
    desk.build()
    check_rank_files(read_engine(desk.out))
    assert "not kept for other builds" in desk.log.read_text()


def test_two_builds_that_finish_the_same_engine_keep_one(tmp_path: Path) -> None:
    """The second leaves the first one's files where they are: a third may be linking them."""
    built = tmp_path / "built"
    built.mkdir()
    (built / "rank0.engine").write_bytes(b"engine")
    store(tmp_path / "cache", "key", built)
    kept = (tmp_path / "cache" / "key").stat().st_ino
    store(tmp_path / "cache", "key", built)
    assert (tmp_path / "cache" / "key").stat().st_ino == kept


def test_another_release_is_built_anew(desk: Desk) -> None:
    desk.build("1.2.0")
    desk.log.unlink()
    desk.build("1.2.1")
    assert read_engine(desk.out).version == "1.2.1"


def test_a_builder_of_another_version_is_found_out_and_nothing_is_cached(desk: Desk) -> None:
    with pytest.raises(BuildError, match=r"version: asked '1\.2\.1', built '1\.2\.0'") as error:
        desk.build("1.2.1", installed="1.2.0")
    assert error.value.code == "ENGINE-DIFFERS"
    desk.build("1.2.1")
    assert read_engine(desk.out).version == "1.2.1"


def test_an_option_of_a_newer_release_is_explained(desk: Desk) -> None:
    with pytest.raises(BuildError, match=r"does not know an option.*--fuse_fp4_quant") as error:
        desk.build("1.2.1", installed="0.17.0")
    assert error.value.code == "BUILD-GRAMMAR"


def test_a_silent_override_of_the_builder_is_an_error(desk: Desk) -> None:
    # The YAML names no GPU, so FP8 attention is asked for; the builder runs on an A100 and switches it off.
    with pytest.raises(BuildError, match="use_paged_context_fmha: asked True, built False"):
        desk.build(spec=dataclasses.replace(TARGET, sm=None), sm=80)


def test_int8_weights_on_blackwell_are_explained(desk: Desk) -> None:
    source = write_known_model("meta-llama/Llama-3.3-70B-Instruct", desk.folder)
    desk.convert(source, quantization="int8_weight_only", tensor_parallel=4)
    spec = dataclasses.replace(TARGET, quantization="int8_weight_only", kv_dtype="auto")
    with pytest.raises(BuildError, match="not supported on SM>=100") as error:
        desk.build(spec=spec, sm=100)
    assert error.value.code == "BUILD-SM"


def test_engine_sinks_of_another_architecture_are_explained(desk: Desk) -> None:
    source = write_known_model("Qwen/Qwen2.5-72B-Instruct", desk.folder)
    desk.convert(source, tensor_parallel=4)
    spec = EngineSpec(max_batch_size=1, max_input_len=1024, max_seq_len=2048, attention_sinks=True, reuse=False)
    with pytest.raises(BuildError, match="only supported in the llama model"):
        desk.build("0.21.0", spec=spec)


def test_engine_sinks_end_with_0_21(desk: Desk) -> None:
    spec = EngineSpec(max_batch_size=1, max_input_len=1024, max_seq_len=2048, attention_sinks=True, reuse=False)
    desk.convert(write_known_model("meta-llama/Llama-3.1-8B-Instruct", desk.folder))
    desk.build("0.21.0", spec=spec)
    assert read_engine(desk.out).spec.attention_sinks
    with pytest.raises(BuildError, match="no longer supported"):
        desk.build("1.0.0", spec=spec)


def test_a_missing_builder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="trtllm-build is not on PATH") as error:
        choose_runner("local", _release("1.2.1"), search_path=str(tmp_path))
    assert error.value.exit_code == 3


def test_a_missing_container_runtime_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="neither docker nor podman"):
        choose_runner("docker", _release("1.2.1"), search_path=str(tmp_path))


def test_missing_rank_files_of_a_copied_engine_are_named(desk: Desk) -> None:
    desk.build()
    (desk.out / "rank2.engine").unlink()
    with pytest.raises(InputError, match=r"1 of 4 .*rank2\.engine"):
        check_rank_files(read_engine(desk.out))


def test_a_killed_builder_reports_the_memory_it_wanted(desk: Desk) -> None:
    error = _failure(desk, "echo loading; kill -9 $$")
    assert error.code == "BUILD-HOST-OOM" and "ran out of memory; its ranks need about" in error.cause


def test_a_killed_worker_of_the_builder_is_recognised(desk: Desk) -> None:
    said = "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly"
    assert _failure(desk, f"echo '{said} while the future was running'; exit 1").code == "BUILD-HOST-OOM"


@pytest.mark.parametrize(
    ("says", "code", "exit_code"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "BUILD-GPU-OOM", 4),
        ("RuntimeError: Required but not provided tensors:{'lm_head.weight'}", "BUILD-TENSOR", 4),
        ("RuntimeError: Found no NVIDIA driver on your system", "GPU-MISSING", 3),
        ("OSError: [Errno 28] No space left on device", "DISK", 3),
        ("OSError: [Errno 28] No space left on device: '/x/rank0.engine'", "DISK", 3),
        ("AssertionError: Unsupported model architecture: FooForCausalLM", "BUILD-ARCH", 4),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "CONTAINER", 3),
        ("something nobody has seen", "BUILD-FAILED", 4),
    ],
)
def test_known_failures_have_a_code_and_a_fix(desk: Desk, says: str, code: str, exit_code: int) -> None:
    error = _failure(desk, f"cat <<'END'\n{says}\nEND\nexit 1")
    assert (error.code, error.exit_code) == (code, exit_code)
    assert error.fix and error.where == str(desk.log)
    assert ("/x/rank0.engine" in error.cause) == ("/x/rank0.engine" in says)


def _failure(desk: Desk, script: str) -> TrtkitError:
    """The error for a builder that runs this shell script."""
    desk.bin.mkdir(exist_ok=True)
    program = desk.bin / "trtllm-build"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    release = _release("1.2.1")
    tools = BuildTools(choose_runner("local", release), desk.folder / "cache", ROOM)
    desk.out.mkdir(exist_ok=True)
    with pytest.raises(TrtkitError) as error:
        build_engine(EngineJob("target", TARGET, release, desk.checkpoint, "d", desk.log), tools, desk.out, silent)
    return error.value
