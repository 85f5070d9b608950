"""The conversion: plan, check the disk, write every rank in one pass, leave a manifest. Knows no layout."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit import __version__
from trtkit.artifacts import destination, disk_error, is_complete, key_of, scratch_of, stage_output, write_text
from trtkit.conversion.calibration import refuse_foreign
from trtkit.conversion.disk_space import check_disk
from trtkit.conversion.draft_vocabulary import carry_draft_vocabulary, draft_vocabulary_key
from trtkit.conversion.encoding import Encoders, is_quantized
from trtkit.conversion.foreign_source import foreign_files, readable_source
from trtkit.conversion.hf_fp8 import write_hf_fp8
from trtkit.conversion.modelopt import export_with_modelopt
from trtkit.conversion.modelopt_output import complete_config, complete_hf_folder, exported_files
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS, ConversionOptions
from trtkit.conversion.out_folder import refuse_out, refuse_to_replace
from trtkit.conversion.plan import ConversionPlan, modelopt_options, plan_conversion
from trtkit.conversion.rank_writer import RankWriter, WrittenFile
from trtkit.conversion.report import MANIFEST_NAME, ConversionReport, findings_of, manifest_text, report_of
from trtkit.conversion.source_files import SourceFiles, refuse_non_finite
from trtkit.conversion.source_states import SourceStates, checkpoint_states
from trtkit.conversion.trtllm_config import carried_quantization, checkpoint_config
from trtkit.conversion.verify import verify_checkpoint
from trtkit.errors import InputError
from trtkit.findings import Finding
from trtkit.progress import OnProgress, silent


def convert_to(
    source: Path, out: Path, options: ConversionOptions, on_progress: OnProgress = silent, *, verify: bool = False
) -> ConversionReport:
    """Convert into `out`, which appears whole or not at all; an `out` with the same inputs is left as it is.

    `source` may also be a GGUF file, or a folder with one, or with pickles when the options allow them. Raises what
    convert_checkpoint raises, and InputError OUT-EXISTS when `out` is something else's directory, or holds files that
    no conversion wrote and would have to be replaced.
    """
    started, asked, out = time.perf_counter(), out, destination(out)
    refuse_out(source, out)
    foreign = foreign_files(source, allow_pickle=options.allow_pickle)
    if foreign:
        states = SourceStates(foreign)
        key = _foreign_key(source, foreign, states, options)
    else:
        plan, states = _read(source, options)
        key = _key(plan, states, source)
    report = report_of(out) if is_complete(out, key, beside_others=True) else None
    if report is None:
        refuse_to_replace(out)
        report = _convert_anew((source, states), out, options, key, on_progress)
    if verify:
        verify_checkpoint(out, on_progress)
    return replace(report, out=asked, seconds=time.perf_counter() - started, verified=verify)


def _convert_anew(
    read: tuple[Path, SourceStates], out: Path, options: ConversionOptions, key: str, on_progress: OnProgress
) -> ConversionReport:
    """Rewrite a foreign source as safetensors where needed, convert, and remove what was rewritten.

    read: the source, and its state when the key was made of it.
    """
    source, states = read
    rewritten, scratch = out.with_name(f".{out.name}.source"), scratch_of(out)
    readable = readable_source(source, rewritten, allow_pickle=options.allow_pickle)
    try:
        check_disk(plan_conversion(readable, options), out, scratch)
    except InputError:
        shutil.rmtree(rewritten, ignore_errors=True)
        raise
    try:
        with stage_output(out, stage="convert", key=key):
            report = convert_checkpoint(readable, scratch, options, on_progress)
            states.check()
            refuse_to_replace(out)
    except InputError:
        # Nothing that a later run could go on with.
        if not list(scratch.glob("*.safetensors")):
            shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(rewritten, ignore_errors=True)
        raise
    except OSError as error:
        raise disk_error(error, out) from error
    shutil.rmtree(rewritten, ignore_errors=True)
    return report


def _foreign_key(source: Path, files: list[Path], states: SourceStates, options: ConversionOptions) -> str:
    named = {file.name: states.key_of(file) for file in files}
    decides = {"version": __version__, **options.decides()}
    return key_of({**decides, "source": str(source.resolve()), "files": named})


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
    (docs/conversion.md lists the codes), CheckpointError CKPT-CHANGED when it changes meanwhile,
    MissingToolError DISK on a full disk.
    """
    started = clock()
    plan, states = _read(source, options)
    if options.calibration is not None:
        refuse_foreign(options.calibration, source)
    check_disk(plan, out, out)
    try:
        written, findings = _write(plan, states, source, out, on_progress)
        write_text(out / MANIFEST_NAME, manifest_text(plan, written, findings))
        for record in out.glob(".rank*.done.json"):
            record.unlink()
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


def _read(source: Path, options: ConversionOptions) -> tuple[ConversionPlan, SourceStates]:
    """The plan, and the state of everything that it was made of: taken first, so that no change goes unnoticed."""
    states = checkpoint_states(source, options)
    return plan_conversion(source, options), states


def _write(
    plan: ConversionPlan, states: SourceStates, source: Path, out: Path, on_progress: OnProgress
) -> tuple[list[WrittenFile], list[Finding]]:
    """Everything but the manifest, by the writer that the options ask for."""
    options = plan.options
    with SourceFiles(plan.weights, plan.names, states) as opened:
        if options.strict:
            refuse_non_finite(opened, source)
        if options.quantization in MODELOPT_QUANTIZATIONS:
            files = _quantize_by_modelopt(plan, source, out, opened, on_progress)
        elif options.output_format == "hf":
            files = [write_hf_fp8(plan, source, out, opened, on_progress)]
        else:
            files = _write_ranks(plan, _key(plan, states, source), out, opened, on_progress)
            write_text(out / "config.json", json.dumps(_config(plan), indent=2) + "\n")
            carry_draft_vocabulary(source, out, plan.spec.vocab_size)
        opened.check_unchanged()
        return files, findings_of(plan, opened, source)


def _quantize_by_modelopt(
    plan: ConversionPlan, source: Path, out: Path, opened: SourceFiles, on_progress: OnProgress
) -> list[WrittenFile]:
    """modelopt reads the checkpoint itself; NaN and Inf are looked for here, as in every other conversion."""
    opened.non_finite.update(name for name in opened.names if opened.holds_non_finite(name))
    how = modelopt_options(plan.options)
    export_with_modelopt(source, plan.options.calibration_ids, out, how, on_progress)
    if how.format == "hf":
        complete_hf_folder(source, out)
    else:
        complete_config(out, checkpoint_config(plan.spec, replace(plan.options, quantization="none")))
    return exported_files(out, how)


def _config(plan: ConversionPlan) -> dict[str, Any]:
    """config.json, with who wrote it."""
    config = checkpoint_config(plan.spec, plan.options) | {"producer": {"name": "trtkit", "version": __version__}}
    if plan.scales is not None and plan.scales.weights:
        linear = (t for targets in plan.targets for t in targets if t.kind in ("linear", "expert"))
        left = sorted({t.name.removesuffix(".weight") for t in linear if not is_quantized(plan, t)})
        config["quantization"] = carried_quantization(config["quantization"], left)
    return config


def _write_ranks(
    plan: ConversionPlan, key: str, out: Path, files: SourceFiles, on_progress: OnProgress
) -> list[WrittenFile]:
    writer = RankWriter(out, key, Encoders(plan, files), files)
    width = plan.options.tensor_parallel
    written: list[WrittenFile] = []
    for first in range(0, len(plan.targets), width):
        ranks = {index: plan.targets[index] for index in range(first, first + width)}
        written += writer.write_stage(ranks, on_progress)
    return written


def _key(plan: ConversionPlan, states: SourceStates, source: Path) -> str:
    """Identifies source and options: where it lies, file sizes and times, config.json's content, the code's version.

    Files have their names below the source, and that its full path, however the source was named: two checkpoints that
    were unpacked with equal times and sizes are not taken for one.
    """
    files = {tensor.file for tensor in plan.weights.values()}
    return key_of(
        {
            "version": __version__,
            **plan.options.decides(),
            "config": hashlib.sha256((source / "config.json").read_bytes()).hexdigest(),
            **draft_vocabulary_key(source),
            "source": str(source.resolve()),
            "files": {file.relative_to(source).as_posix(): states.key_of(file) for file in files},
        }
    )
