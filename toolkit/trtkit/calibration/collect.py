"""The pass: every sample through one layer, then the next. Knows the order, not what the numbers are used for.

Resident are the weights of the layer that runs and of the one that is read meanwhile, and one sample's activations;
the states between two layers lie on disk. The result depends on checkpoint, samples and dtype alone.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trtkit.calibration.layer_source import LayerSource
from trtkit.calibration.pass_files import PassFiles
from trtkit.calibration.records import KEYS, VALUES, LayerRecord
from trtkit.calibration.samples import Sample
from trtkit.calibration.skeleton import FilledLayer, Skeleton
from trtkit.calibration.statistics import KEPT_TOKENS, TensorStatistics
from trtkit.calibration.taps import CacheTap, LinearTap
from trtkit.checkpoints.model_spec import ModelSpec, read_model_spec
from trtkit.errors import InputError
from trtkit.progress import OnProgress, Progress, silent

KEPT_TOKENS_OF_EXPERT = 64  # there may be hundreds of experts in a layer; their channels are not counted either
Errors = Mapping[str, Mapping[str, float]]
Measure = Callable[[FilledLayer, Mapping[str, TensorStatistics], Mapping[str, str]], Errors]
"""(layer, statistics by heard name, linear -> heard name) -> errors by heard name; called once per layer."""


@dataclass(frozen=True)
class PassOptions:
    """dtype: of the computation, named as torch does; device: "cpu" or "cuda"."""

    dtype: str
    device: str = "cpu"


def measure_nothing(*_: object) -> Errors:
    """The Measure that measures nothing."""
    return {}


def collect(
    checkpoint: Path,
    samples: list[Sample],
    out: Path,
    options: PassOptions,
    measure: Measure = measure_nothing,
    on_progress: OnProgress = silent,
) -> None:
    """Run the pass and leave one record per layer in `out` (pass_files.py); goes on where an earlier one stopped.

    `out` must be empty or of the same checkpoint, samples and options. Raises CheckpointError for a checkpoint that
    cannot be read, InputError CALIB-NONFINITE that names layer, tensor and text when NaN or Inf appears.
    """
    spec = read_model_spec(checkpoint)
    dtype: torch.dtype = getattr(torch, options.dtype)
    files = PassFiles(out, [len(sample.token_ids) for sample in samples], spec.hidden_size, dtype)
    with LayerSource(checkpoint, spec, dtype) as source:
        skeleton = Skeleton(checkpoint, source, dtype, options.device)
        first = files.next_layer()
        if first is None:
            first = 0
            files.write_states(0, iter(skeleton.embed([torch.tensor(sample.token_ids) for sample in samples])))
        skeleton.forget_embeddings()
        run = _Pass(spec, source, skeleton, samples, files)
        with ThreadPoolExecutor(max_workers=1) as reader:
            pending = reader.submit(source.layer, first) if first < spec.num_layers else None
            for number in range(first, spec.num_layers):
                pending = run.layer(number, _taken(pending), lambda n: reader.submit(source.layer, n), measure)
                on_progress(Progress("calibrate", number + 1, spec.num_layers, "layers"))
    files.finish()


def _taken(pending: "Future[dict[str, Tensor]] | None") -> dict[str, Tensor]:
    assert pending is not None, "a layer is read before it runs"
    return pending.result()


class _Pass:
    """What stays the same from layer to layer."""

    def __init__(
        self, spec: ModelSpec, source: LayerSource, skeleton: Skeleton, samples: list[Sample], files: PassFiles
    ) -> None:
        self._spec = spec
        self._source = source
        self._skeleton = skeleton
        self._samples = samples
        self._files = files

    def layer(
        self,
        number: int,
        tensors: dict[str, Tensor],
        read: "Callable[[int], Future[dict[str, Tensor]]]",
        measure: Measure,
    ) -> "Future[dict[str, Tensor]] | None":
        """Run one layer, write its record, and return the next layer's weights while they are being read."""
        filled = self._skeleton.filled(number, tensors)
        tensors.clear()
        pending = read(number + 1) if number + 1 < self._spec.num_layers else None
        ears = _Ears(self._spec, number)
        with LinearTap(filled.linears(), ears.hear) as tap:
            self._files.write_states(number + 1, self._run(filled, ears))
        errors = measure(filled, ears.statistics, tap.aliases)
        filled.release()
        names = self._source.layer_names(number)
        modules = {names[f"{name}.weight"].removesuffix(".weight"): heard for name, heard in tap.aliases.items()}
        records = {name: statistics.record() for name, statistics in ears.statistics.items()}
        self._files.finish_layer(LayerRecord(number, records, modules, errors))
        return pending

    def _run(self, filled: FilledLayer, ears: "_Ears") -> Iterator[Tensor]:
        cache = CacheTap(ears.hear)
        for sample, state in zip(self._samples, self._files.states(filled.number), strict=True):
            ears.text = sample.name
            out = filled.step(state, cache)
            if not torch.isfinite(out).all():
                raise ears.not_finite("the state after the layer")
            yield out


class _Ears:
    """Collects what one layer's taps hear."""

    def __init__(self, spec: ModelSpec, number: int) -> None:
        self.statistics: dict[str, TensorStatistics] = {}
        self.text = ""
        self._num_kv_heads = spec.num_kv_heads
        self._number = number

    def hear(self, name: str, x: Tensor) -> None:
        """Count a tensor [T, C]."""
        if name not in self.statistics:
            heads = self._num_kv_heads if name in (KEYS, VALUES) else 0
            expert = ".experts." in name
            kept = KEPT_TOKENS_OF_EXPERT if expert else KEPT_TOKENS
            self.statistics[name] = TensorStatistics(x.shape[1], heads, kept, by_channel=not expert)
        if not self.statistics[name].update(x):
            raise self.not_finite({KEYS: "the keys", VALUES: "the values"}.get(name, f"the input of {name}"))

    def not_finite(self, what: str) -> InputError:
        """The error for NaN or Inf."""
        return InputError(
            f"layer {self._number}: NaN or Inf in {what} while the text {self.text!r} runs",
            "try --dtype float32; if it stays, a weight of this layer is damaged (trtkit convert --strict names it)",
            code="CALIB-NONFINITE",
        )
