"""The conversion: plan, check the disk, write every rank in one pass, leave a manifest. Knows no layout."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from trtkit import __version__
from trtkit.artifacts import disk_error, is_complete, key_of, stage_output, write_text
from trtkit.conversion.encoding import Encoders
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.plan import ConversionPlan, plan_conversion
from trtkit.conversion.rank_writer import RankWriter, WrittenFile, file_bytes
from trtkit.conversion.report import MANIFEST_NAME, ConversionReport, findings_of, manifest_text, report_of
from trtkit.conversion.source_files import SourceFiles
from trtkit.conversion.trtllm_config import checkpoint_config
from trtkit.errors import CheckpointError, InputError
from trtkit.progress import OnProgress, silent

_SPARE_BYTES = 16 << 20


def convert_to(
    source: Path, out: Path, options: ConversionOptions, on_progress: OnProgress = silent
) -> ConversionReport:
    """Convert into `out`, which appears whole or not at all; an `out` with the same inputs is left as it is.

    Raises what convert_checkpoint raises, and InputError OUT-EXISTS when `out` is something else's directory.
    """
    started = time.perf_counter()
    plan = plan_conversion(source, options)
    key = _key(plan, source)
    _refuse_foreign_out(source, out)
    if is_complete(out, key):
        return report_of(out, plan, time.perf_counter() - started)
    _check_disk(plan, out.parent)
    with stage_output(out, stage="convert", key=key) as scratch:
        report = convert_checkpoint(source, scratch, options, on_progress)
    return ConversionReport(
        out, report.files, report.num_tensors, time.perf_counter() - started, report.skipped, report.findings
    )


def convert_checkpoint(
    source: Path,
    out: Path,
    options: ConversionOptions,
    on_progress: OnProgress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> ConversionReport:
    """Write config.json, rank{N}.safetensors and conversion.json into the existing directory `out`.

    Each rank file is written beside, flushed and renamed; one that an earlier run finished for the same source and
    options is kept. Raises CheckpointError before anything is written when the checkpoint cannot be converted as asked
    (docs/conversion.md lists the codes), CheckpointError CKPT-CHANGED when it changes meanwhile, BuildError DISK.
    """
    started = clock()
    plan = plan_conversion(source, options)
    _check_disk(plan, out)
    try:
        with SourceFiles(plan.weights, plan.names) as files:
            written = _write_ranks(plan, source, out, files, on_progress)
            findings = findings_of(files, source)
        config = checkpoint_config(plan.spec, plan.options) | {"producer": {"name": "trtkit", "version": __version__}}
        write_text(out / "config.json", json.dumps(config, indent=2) + "\n")
        write_text(out / MANIFEST_NAME, manifest_text(plan, written, findings))
        for file in written:
            (out / f".{file.name.removesuffix('.safetensors')}.done.json").unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(error, out) from error
    return ConversionReport(
        out=out,
        files=tuple(written),
        num_tensors=sum(len(targets) for targets in plan.targets),
        seconds=clock() - started,
        skipped=all(file.skipped for file in written),
        findings=tuple(findings),
    )


def _write_ranks(
    plan: ConversionPlan, source: Path, out: Path, files: SourceFiles, on_progress: OnProgress
) -> list[WrittenFile]:
    writer = RankWriter(out, _key(plan, source), Encoders(plan, files), files)
    width = plan.options.tensor_parallel
    written: list[WrittenFile] = []
    for first in range(0, len(plan.targets), width):
        ranks = {index: plan.targets[index] for index in range(first, first + width)}
        written += writer.write_stage(ranks, on_progress)
    return written


def _key(plan: ConversionPlan, source: Path) -> str:
    """Identifies source and options: file sizes and times, config.json's content, and the code's version."""
    stats = {str(file): file.stat() for file in {tensor.file for tensor in plan.weights.values()}}
    return key_of(
        {
            "version": __version__,
            "options": repr(plan.options),
            "config": hashlib.sha256((source / "config.json").read_bytes()).hexdigest(),
            "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
        }
    )


def _check_disk(plan: ConversionPlan, out: Path) -> None:
    """Raise CheckpointError DISK-SPACE when the files will not fit beside what is there."""
    source = SourceFiles(plan.weights, plan.names)
    writer = RankWriter(out, "", Encoders(plan, source), source)
    needed = sum(file_bytes(writer.headers(targets)) for targets in plan.targets) + _SPARE_BYTES
    free = shutil.disk_usage(_existing(out)).free + sum(file.stat().st_size for file in out.glob("rank*.safetensors"))
    if needed > free:
        raise CheckpointError(
            f"the converted checkpoint needs {needed / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free",
            "free space, or choose another OUT",
            code="DISK-SPACE",
            where=str(out),
        )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _refuse_foreign_out(source: Path, out: Path) -> None:
    if out.exists() and not (out / MANIFEST_NAME).is_file() and (out.is_file() or any(out.iterdir())):
        raise InputError(
            "exists and is no converted checkpoint",
            "choose another OUT, or remove it yourself",
            code="OUT-EXISTS",
            where=str(out),
        )
    inside = {out.resolve(), *out.resolve().parents}
    if source.resolve() in inside or out.resolve() in source.resolve().parents:
        raise InputError(
            "OUT and the checkpoint lie in each other", "choose another OUT", code="OUT-EXISTS", where=str(out)
        )
