"""Calibrates one checkpoint into a directory: samples, pass, scales, report. Knows the order, not the work."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch

from trtkit import __version__
from trtkit.artifacts import is_complete, key_of, stage_output
from trtkit.calibration.bounded_attention import takes_bounded_caches
from trtkit.calibration.cache_variants import bounded_variants, cache_variants
from trtkit.calibration.calibration_file import (
    FILE_NAME,
    ScaleOptions,
    calibration_document,
    choose_limits,
    unused_expert_findings,
    write_calibration,
)
from trtkit.calibration.collect import PassOptions, collect
from trtkit.calibration.compare import StoredScales, compare_with_checkpoint, read_comparable
from trtkit.calibration.errors import measure_layer
from trtkit.calibration.heat_map import draw_heat_map
from trtkit.calibration.layer_source import linear_modules
from trtkit.calibration.modelopt_checkpoint import quantize_with_modelopt, refuse_unquantizable
from trtkit.calibration.outliers import judge_layer, overall_cache_advice
from trtkit.calibration.pass_files import are_whole_records, read_records
from trtkit.calibration.price import PriceRow
from trtkit.calibration.price_pass import measure_prices
from trtkit.calibration.price_plot import draw_prices
from trtkit.calibration.report import HEAT_MAP_NAME, PRICE_PLOT_NAME, CalibrationReport, Measured, write_report
from trtkit.calibration.samples import Sample, SampleOptions, hold_out, make_samples
from trtkit.calibration.texts import CalibrationText, shipped_texts
from trtkit.checkpoints.digest import checkpoint_digest
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.config.schema import Dtype
from trtkit.conversion.modelopt_limits import ModeloptOptions
from trtkit.errors import InputError
from trtkit.findings import Finding
from trtkit.progress import OnProgress, silent

MEASURED_NAME, MODELOPT_NAME = "measured", "modelopt"
_FEW_TOKENS = 2048
_RECORDS_VERSION = 6  # of what a record holds: records of another one are measured again


@dataclass(frozen=True)
class CalibrationOptions:
    """Everything that decides a calibration, beside checkpoint and texts.

    dtype: of the computation. price: also measure what each KV precision costs, on an eighth of the samples.
    modelopt: also quantise with nvidia-modelopt, on the same samples. compare: a checkpoint whose KV scales are held
    against the measured ones.
    """

    dtype: str
    device: str = "cpu"
    samples: SampleOptions = field(default_factory=SampleOptions)
    scales: ScaleOptions = field(default_factory=ScaleOptions)
    price: bool = False
    modelopt: ModeloptOptions | None = None
    compare: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """A calibration in whose way nothing is known to stand: its inputs are read, and nothing ran yet.

    compared: the scales to be held against the measured ones.
    """

    checkpoint: Path
    spec: ModelSpec
    options: CalibrationOptions
    samples: list[Sample]
    held_out: list[Sample]
    compared: StoredScales | None


def prepare(checkpoint: Path, options: CalibrationOptions, texts: list[CalibrationText] | None = None) -> Prepared:
    """Read what decides the calibration of `checkpoint`, and refuse here what would end it after the pass.

    texts: None takes those that trtkit ships. Raises what make_samples and read_comparable raise, and what refuses
    nvidia-modelopt.
    """
    spec = read_model_spec(checkpoint)
    _refuse_dtype(options.dtype)
    if options.modelopt is not None:
        refuse_unquantizable(checkpoint, options.modelopt)
    compared = None if options.compare is None else read_comparable(options.compare, options.scales.kv_format)
    given, chosen_by = shipped_texts() if texts is None else texts, options.samples.within(spec.max_seq_len)
    samples, held_out = hold_out(make_samples(given, checkpoint, spec.vocab_size, chosen_by))
    if options.price and not any(len(sample.token_ids) > 1 for sample in held_out):
        raise _nothing_held_out(samples)
    return Prepared(checkpoint, spec, options, samples, held_out, compared)


def calibrate(
    checkpoint: Path,
    out: Path,
    options: CalibrationOptions,
    texts: list[CalibrationText] | None = None,
    on_progress: OnProgress = silent,
) -> CalibrationReport:
    """Prepare and run. Raises what prepare and collect raise."""
    return run_prepared(prepare(checkpoint, options, texts), out, on_progress)


def run_prepared(prepared: Prepared, out: Path, on_progress: OnProgress = silent) -> CalibrationReport:
    """Calibrate into `out`. Measurements that stand there are used again, damaged ones are made again, an interrupted
    pass goes on. Raises what collect raises.
    """
    checkpoint, options, samples = prepared.checkpoint, prepared.options, prepared.samples
    digest = checkpoint_digest(checkpoint, on_progress)
    folder = out / MEASURED_NAME
    key = _key(digest, samples, options)
    if not (is_complete(folder, key) and are_whole_records(folder)):
        with stage_output(folder, stage="calibrate", key=key) as scratch:
            collect(
                checkpoint, samples, scratch, PassOptions(options.dtype, options.device), measure_layer, on_progress
            )
    report = _conclude(out, checkpoint, _measured(checkpoint, digest, samples, options), options.scales)
    write_report(report, out)  # what follows may fail, and the report that is there would be of other scales
    if options.price:
        report = replace(report, prices=_prices(prepared, folder, on_progress))
        draw_prices(report.prices, out / PRICE_PLOT_NAME)
    if options.modelopt is not None:
        quantize_with_modelopt(checkpoint, samples, out / MODELOPT_NAME, options.modelopt, on_progress)
        report = replace(report, modelopt=out / MODELOPT_NAME)
    if prepared.compared is not None:
        report = replace(report, comparison=compare_with_checkpoint(report.kv_scales, prepared.compared))
    write_report(report, out)
    return report


def _refuse_dtype(dtype: str) -> None:
    if dtype not in get_args(Dtype):
        raise InputError(
            f"{dtype!r} is no dtype to compute in", f"use one of {', '.join(get_args(Dtype))}", code="CALIB-OPTION"
        )


def _measured(checkpoint: Path, digest: str, samples: Sequence[Sample], options: CalibrationOptions) -> Measured:
    return Measured(
        checkpoint=str(checkpoint),
        digest=digest,
        num_samples=len(samples),
        num_tokens=sum(len(sample.token_ids) for sample in samples),
        seed=options.samples.seed,
        dtype=options.dtype,
        method=options.scales.method.name,
        percentile=options.scales.method.percentile if options.scales.method.name == "percentile" else None,
    )


def _prices(prepared: Prepared, folder: Path, on_progress: OnProgress) -> tuple[PriceRow, ...]:
    """What each KV precision, window and heavy-hitter setting costs, with limits as the calibration file has them."""
    spec, options, held_out = prepared.spec, prepared.options, prepared.held_out
    variants = cache_variants(spec, read_records(folder), getattr(torch, options.dtype), options.scales.method)
    if takes_bounded_caches(spec):
        variants += bounded_variants(variants, longest=max(len(sample.token_ids) for sample in held_out))
    return measure_prices(
        prepared.checkpoint, held_out, variants, PassOptions(options.dtype, options.device), on_progress
    )


def _nothing_held_out(samples: list[Sample]) -> InputError:
    count = len({sample.token_ids for sample in samples})
    return InputError(
        f"{count} different samples are too few, or too short, to keep some apart for measuring the price",
        "give at least 8 samples of several tokens, or leave out --price",
        code="CALIB-TINY",
    )


def _key(digest: str, samples: list[Sample], options: CalibrationOptions) -> str:
    """What decides the measurements; how scales are chosen from them does not."""
    return key_of(
        {
            "trtkit": __version__,
            "records": _RECORDS_VERSION,
            "checkpoint": digest,
            "dtype": options.dtype,
            "device": options.device,
            "samples": [sample.token_ids for sample in samples],
        }
    )


def _conclude(out: Path, checkpoint: Path, measured: Measured, options: ScaleOptions) -> CalibrationReport:
    """Scales, heat map and report from the measurements; each file is written whole or not at all."""
    limits = choose_limits(read_records(out / MEASURED_NAME), linear_modules(checkpoint), options)
    cache = options.kv_format
    scales = limits.kv_scales(cache)
    records = read_records(out / MEASURED_NAME)
    layers = tuple(judge_layer(record, cache, scales.get(record.layer)) for record in records)
    advice, reason = overall_cache_advice(layers, cache)
    findings = unused_expert_findings(limits, measured.checkpoint)
    if measured.num_tokens < _FEW_TOKENS:
        findings.append(_few_tokens(measured))
    write_calibration(out / FILE_NAME, calibration_document(limits, measured.digest, options))
    draw_heat_map(layers, cache, out / HEAT_MAP_NAME)
    (out / PRICE_PLOT_NAME).unlink(missing_ok=True)  # that of an earlier run is of other scales
    return CalibrationReport(out, measured, layers, cache, scales, advice, reason, tuple(findings))


def _few_tokens(measured: Measured) -> Finding:
    return Finding(
        "CALIB-FEW",
        "warning",
        measured.checkpoint,
        f"only {measured.num_tokens} tokens were measured; rare large values may be missing",
        f"calibrate with at least {_FEW_TOKENS} tokens: more samples, a larger max_len or more text",
    )
