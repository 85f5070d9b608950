"""Calibration: the measured maxima that static scales come from, read from a file. Measures nothing itself.

The file is JSON (docs/conversion.md): {"schema": "trtkit.calibration/1", "inputs": {module: max |x|},
"kv_cache": {layer: {"k": max |k|, "v": max |v|}}, "checkpoint": {"digest": of what was measured}}. A module is named
as in the checkpoint, without ".weight"; k and v are measured as they enter the cache.
"""

from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoints.digest import checkpoint_digest
from trtkit.checkpoints.json_fields import JsonFields, read_json_fields
from trtkit.errors import CheckpointError, InputError

SCHEMA = "trtkit.calibration/1"
_MAKE_ONE = "make one with `trtkit calibrate`; docs/conversion.md describes it"


@dataclass(frozen=True)
class Calibration:
    """inputs: module name -> max |x| of what enters it. kv_cache: layer -> max |k| and max |v|."""

    inputs: dict[str, float]
    kv_cache: dict[int, tuple[float, float]]
    where: str

    def input_max(self, modules: list[str]) -> float:
        """The largest input of modules that share one scale. Raises InputError CONV-CALIBRATION when one is missing."""
        missing = [module for module in modules if module not in self.inputs]
        if missing:
            raise _missing(f"no input maximum for {missing[0]}", self.where)
        return max(self.inputs[module] for module in modules)

    def kv_max(self, layer: int) -> float:
        """The largest key or value of a layer. Raises InputError CONV-CALIBRATION when it is missing."""
        return max(self.kv_maxima(layer))

    def kv_maxima(self, layer: int) -> tuple[float, float]:
        """The largest key and the largest value. Raises InputError CONV-CALIBRATION when they are missing."""
        if layer not in self.kv_cache:
            raise _missing(f"no key and value maxima for layer {layer}", self.where)
        return self.kv_cache[layer]


def read_calibration(path: Path) -> Calibration:
    """Parse the file. Raises InputError CONV-CALIBRATION when it is missing, damaged, or of another kind."""
    try:
        return _parse(read_json_fields(path), str(path))
    except CheckpointError as error:
        raise InputError(error.cause, _MAKE_ONE, code="CONV-CALIBRATION", where=error.where) from None


def _parse(fields: JsonFields, where: str) -> Calibration:
    if fields.text("schema", "") != SCHEMA:
        raise InputError(f"is no calibration file ({SCHEMA})", _MAKE_ONE, code="CONV-CALIBRATION", where=where)
    inputs, caches = fields.object("inputs"), fields.object("kv_cache")
    return Calibration(
        inputs={} if inputs is None else {module: inputs.number(module) for module in inputs.values},
        kv_cache={} if caches is None else dict(_kv_entry(caches, key) for key in caches.values),
        where=where,
    )


def refuse_foreign(path: Path, checkpoint: Path) -> None:
    """Raise InputError CALIB-CHECKPOINT when the file was measured on other weights than those in `checkpoint`.

    A file without a digest (written by hand) passes. Reads every byte of the checkpoint.
    """
    origin = read_json_fields(path).object("checkpoint")
    if origin is not None and origin.has("digest") and origin.text("digest") != checkpoint_digest(checkpoint):
        raise InputError(
            f"holds scales of another checkpoint than {checkpoint}: the weights' digests differ",
            "run `trtkit calibrate` on this checkpoint",
            code="CALIB-CHECKPOINT",
            where=str(path),
        )


def _kv_entry(caches: JsonFields, key: str) -> tuple[int, tuple[float, float]]:
    entry = caches.object(key)
    if entry is None or not key.isdecimal():
        caches.bad(key, "should be a layer's number with k and v")
    return int(key), (entry.number("k"), entry.number("v"))


def _missing(what: str, where: str) -> InputError:
    return InputError(
        f"{where or 'the options'} hold {what}",
        "calibrate this checkpoint (`trtkit calibrate`) and pass the file with --calibration",
        code="CONV-CALIBRATION",
        where=where or None,
    )


NO_CALIBRATION = Calibration({}, {}, "")
