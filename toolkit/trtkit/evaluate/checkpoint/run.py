"""`trtkit parity checkpoint`: the converted target against the original, layer by layer. Knows the order of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trtkit import __version__
from trtkit.builds import Build
from trtkit.checkpoints.safetensors_header import read_header
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.checkpoint.agreement import Agreement, Stretch
from trtkit.evaluate.checkpoint.drift import PointDrift, first_unexplained, judge_drift, shown
from trtkit.evaluate.checkpoint.html import checkpoint_html
from trtkit.evaluate.checkpoint.summary import checkpoint_junit, checkpoint_markdown
from trtkit.evaluate.checkpoint.traces import CheckpointTracer, Trace, trace_oracle
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.evaluate.oracle.recording import encode_prompts
from trtkit.evaluate.oracle.rounding_cache import RoundingCache
from trtkit.evaluate.oracle.sources import unchanged_source
from trtkit.evaluate.oracle.tolerance import Dtype, NumericProfile, loses_bits
from trtkit.evaluate.reports.files import json_text, refuse_unwritable, write_files
from trtkit.progress import OnProgress, Progress, silent
from trtkit.prompts.encoding import PromptEncoder

SCHEMA = "trtkit.checkpoint-parity/1"
PROBE_DTYPE: Dtype = "bfloat16"


@dataclass
class _Errors:
    """Sums of squared relative errors at each point of a trace, over all positions of all texts."""

    squares: list[float] = field(default_factory=list)
    num_positions: int = 0

    def add(self, expected: Trace, got: Trace) -> None:
        pairs = zip((*expected.stream, expected.logits), (*got.stream, got.logits), strict=True)
        squares = [_relative_squares(one, other) for one, other in pairs]
        self.squares = [a + b for a, b in zip(self.squares or [0.0] * len(squares), squares, strict=True)]
        self.num_positions += len(expected.logits)

    @property
    def root_means(self) -> list[float]:
        return [float((total / self.num_positions) ** 0.5) for total in self.squares]


@dataclass
class _Sums:
    """What was found over all texts; cache: what a coarser cache alone does to the oracle, empty without one."""

    deployed: _Errors = field(default_factory=_Errors)
    probe: _Errors = field(default_factory=_Errors)
    cache: _Errors = field(default_factory=_Errors)
    agreement: Agreement = field(default_factory=Agreement)


def compare_checkpoint(
    build: Build,
    choice: PromptChoice,
    *,
    role: str = "target",
    command: str = "trtkit parity checkpoint",
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Run the prompts through both, compare the residual stream after every part of every layer, and the logits.

    command says in the report how to repeat it.

    Raises CheckpointError when a checkpoint cannot be executed, InputError when no prompt fits, DifferenceError when
    the two have not the same layers. Any other fault is not an error here (see refuse_fault).
    """
    out = build.folder / "parity"
    refuse_unwritable(out)
    folder = unchanged_source(build, role)
    limits, model = build.config.limits, build.config.models[role]
    encoded, skipped = encode_prompts(PromptEncoder.load(folder), choice.read(build), limits.max_input_len)
    texts = _with_a_next_token([sent.prompt_ids for _, sent in encoded])
    tracer = CheckpointTracer.load(build.checkpoint(role), limits.max_input_len)
    oracle, probe = Oracle.load(folder), Oracle.load(folder, dtype=PROBE_DTYPE)
    _refuse_missing_layers(role, tracer.config.num_layers, oracle.num_layers)
    sums = _compare(texts, tracer, oracle, probe, on_progress)
    profile = replace(_profile(oracle, model.dtype), quantization=model.quantization)
    probe_profile = _profile(oracle, PROBE_DTYPE)
    deployed, probed, cached = (each.root_means for each in (sums.deployed, sums.probe, sums.cache))
    drifts = judge_drift(deployed, probed, cached, profile, probe_profile)
    left_out = [entry.as_dict() for entry in skipped]
    document = {
        **_document(drifts, sums.agreement, _stored_names(build.checkpoint(role))),
        "deployment": str(build.folder),
        "command": command,
        "role": role,
        "dtype": profile.dtype,
        "quantization": profile.quantization,
        "kv_dtype": tracer.kv_dtype,
        "skipped": left_out,
        "versions": {**oracle.versions, "trtkit": __version__},
    }
    _write(document, out)
    return document


def _write(document: dict[str, Any], out: Path) -> None:
    name = f"checkpoint-{document['role']}"
    evidence = [str(out / f"{name}.{kind}") for kind in ("html", "json")]
    files = {
        f"{name}.json": json_text(document),
        f"{name}-junit.xml": checkpoint_junit(document, evidence),
        f"{name}.md": checkpoint_markdown(document),
        f"{name}.html": checkpoint_html(document),
    }
    write_files(out, files)


def _compare(
    texts: Sequence[tuple[int, ...]], tracer: CheckpointTracer, oracle: Oracle, probe: Oracle, on_progress: OnProgress
) -> _Sums:
    sums = _Sums()
    for done, token_ids in enumerate(texts):
        on_progress(Progress("layers", done, len(texts), "texts"))
        expected, got = trace_oracle(oracle, token_ids), tracer.trace(token_ids)
        sums.deployed.add(expected, got)
        sums.probe.add(expected, trace_oracle(probe, token_ids))
        if tracer.kv_dtype != "auto":
            sums.cache.add(expected, trace_oracle(oracle, token_ids, RoundingCache(tracer.kv_dtype)))
        sums.agreement.add(token_ids, expected.logits, got.logits)
    on_progress(Progress("layers", len(texts), len(texts), "texts"))
    return sums


def refuse_fault(document: dict[str, Any]) -> None:
    """Raise DifferenceError when an error was found that rounding does not explain."""
    fault = document["first_fault"]
    if fault is not None:
        raise DifferenceError(
            f"the converted {document['role']} leaves the original at {fault['name']}: relative error "
            f"{shown(fault['error'])}, rounding explains {fault['tolerance']:.3g}",
            f"look at {', '.join(fault['tensors'])}; everything before is right",
            code="CHECKPOINT-PARITY",
        )


def _with_a_next_token(texts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that say what follows somewhere. Raises InputError when none does."""
    longer = [token_ids for token_ids in texts if len(token_ids) > 1]
    if not longer:
        raise InputError(
            "no prompt has two tokens, and a single one says nothing of what follows",
            "raise --limit, or give longer ones with --prompts",
            code="PROMPTS",
        )
    return longer


def _refuse_missing_layers(role: str, num_layers: int, expected: int) -> None:
    if num_layers != expected:
        raise DifferenceError(
            f"the converted {role} has {num_layers} layers, the original {expected}",
            f"look at transformer.layers.{min(num_layers, expected)}, the first that only one of them has",
            code="CHECKPOINT-PARITY",
        )


def _stored_names(checkpoint: Path) -> frozenset[str]:
    """The tensors of a converted checkpoint."""
    files = checkpoint.glob("rank*.safetensors")
    return frozenset(tensor.name for path in files for tensor in read_header(path))


def _document(drifts: Sequence[PointDrift], agreement: Agreement, names: frozenset[str]) -> dict[str, Any]:
    fault = first_unexplained(drifts)
    oracle, deployed = map(_finite, agreement.perplexities)
    return {
        "schema": SCHEMA,
        "verdict": "explained" if fault is None else "different",
        "first_fault": None if fault is None else _point(fault, names),
        **_kl(agreement.whole),
        "max_logit_error": _finite(agreement.max_logit_error),
        "perplexity": {"oracle": oracle, "deployed": deployed},
        "by_position": [{"first": s.first, "last": s.last, **_kl(s)} for s in agreement.by_position()],
        "points": [_point(drift, names) for drift in drifts],
    }


def _kl(stretch: Stretch) -> dict[str, Any]:
    return {
        "num_positions": stretch.num_positions,
        "top1_agreement": stretch.top1_agreement,
        "mean_kl": _finite(stretch.mean_kl),
        "max_kl": _finite(stretch.max_kl),
    }


def _point(drift: PointDrift, names: frozenset[str]) -> dict[str, Any]:
    """With the tensors that lie before the point, of those that the checkpoint has."""
    there = [tensor for tensor in drift.point.tensors if any(name.startswith(f"{tensor}.") for name in names)]
    return {
        "name": drift.point.name,
        "error": _finite(drift.error),
        "tolerance": drift.tolerance,
        "tensors": there or list(drift.point.tensors),
    }


def _finite(value: float) -> float | None:
    """JSON has neither infinities nor not-a-number."""
    return value if math.isfinite(value) else None


def _profile(oracle: Oracle, dtype: Dtype) -> NumericProfile:
    return NumericProfile(dtype, oracle.num_layers, oracle.hidden_size, loses_bits(oracle.weights_dtype, dtype))


def _relative_squares(expected: Tensor, got: Tensor) -> float:
    """Sum over positions of |got - expected|^2 / |expected|^2.  expected, got [T, N]"""
    return float(((got - expected).square().sum(dim=1) / expected.square().sum(dim=1)).sum())
