"""The engine stage: run trtllm-build, keep its log, prove the result. Knows the order of the work, no option."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.engines.build_args import BuildPaths, build_command
from trtkit.engines.build_log import log_reader
from trtkit.engines.cache import engine_key, fetch, store, timing_cache
from trtkit.engines.expectation import compare_fields, expected_fields, refuse_mismatches
from trtkit.engines.failures import explain_failure
from trtkit.engines.inspect import read_engine_config
from trtkit.engines.release import Release
from trtkit.engines.runner import Runner, run_logged, wrapped
from trtkit.engines.spec import EngineSpec
from trtkit.engines.workers import HostRoom, bytes_per_worker, num_workers
from trtkit.errors import BuildError, MissingToolError
from trtkit.progress import OnProgress, Progress


@dataclass(frozen=True)
class BuildTools:
    """What engines are built with. cache: the folder of engines by content. room: of the building machine."""

    runner: Runner
    cache: Path
    room: HostRoom


@dataclass(frozen=True)
class EngineJob:
    """One engine to build: role names it, checkpoint is the converted checkpoint, checkpoint_key its content."""

    role: str
    spec: EngineSpec
    release: Release
    checkpoint: Path
    checkpoint_key: str
    log_file: Path

    @property
    def stage(self) -> str:
        """The name in messages."""
        return f"engine {self.role}"


def build_engine(job: EngineJob, tools: BuildTools, out: Path, on_progress: OnProgress) -> None:
    """Fill the empty directory `out` with the engine: from the cache, or by trtllm-build.

    Raises BuildError or MissingToolError that says why trtllm-build failed, or that what it built is not what was
    asked for.
    """
    key = engine_key(job.checkpoint_key, job.spec, job.release, job.spec.sm)
    if fetch(tools.cache, key, out):
        return
    checkpoint = read_checkpoint_config(job.checkpoint)
    world_size: int = checkpoint["mapping"]["world_size"]
    timings = timing_cache(tools.cache, job.release, job.spec.sm)
    timings.parent.mkdir(parents=True, exist_ok=True)
    rank_bytes = max((path.stat().st_size for path in job.checkpoint.glob("rank*.safetensors")), default=0)
    workers = num_workers(world_size, rank_bytes, tools.room)
    paths = BuildPaths(str(job.checkpoint.resolve()), str(out.resolve()), str(timings.resolve()))
    mounts = (job.checkpoint.resolve(), out.resolve(), timings.parent.resolve())
    command = wrapped(build_command(job.spec, job.release, paths, workers), tools.runner, mounts)
    on_line = log_reader(world_size, lambda done, total: on_progress(Progress(job.stage, done, total, "steps")))
    return_code = run_logged(command, job.log_file, on_line)
    if return_code:
        log = job.log_file.read_text(encoding="utf-8")
        needed = workers * bytes_per_worker(rank_bytes)
        raise explain_failure(return_code, log, stage=job.stage, log_file=str(job.log_file), needed_bytes=needed)
    verify_engine(job, checkpoint, out)
    try:
        store(tools.cache, key, out)
    except (BuildError, MissingToolError, OSError) as error:  # the engine stands; the next build does not find it
        with job.log_file.open("a", encoding="utf-8") as file:
            file.write(f"not kept for other builds: {error}\n")


def verify_engine(job: EngineJob, checkpoint: Mapping[str, Any], out: Path) -> None:
    """Compare the engine's config.json with what was asked for, field by field, and look for the rank files."""
    document = read_engine_config(out)
    expected = expected_fields(job.spec, job.release.version, checkpoint)
    refuse_mismatches(compare_fields(expected, document), where=str(job.log_file))
    missing = [
        f"rank{rank}.engine"
        for rank in range(checkpoint["mapping"]["world_size"])
        if not (out / f"rank{rank}.engine").is_file()
    ]
    if missing:
        raise BuildError(
            f"trtllm-build reported success, but wrote no {', '.join(missing)}",
            "read its log; earlier stages are kept",
            code="ENGINE-RANKS",
            where=str(job.log_file),
        )


def read_checkpoint_config(checkpoint: Path) -> dict[str, Any]:
    """config.json of a converted checkpoint, which this program wrote."""
    document = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict), f"{checkpoint}/config.json holds no object"
    return document
