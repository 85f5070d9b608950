"""Calibration: the measured maxima that static scales come from, read from a file. Measures nothing itself.

The file is JSON (docs/conversion.md): {"schema": "trtkit.calibration/1", "inputs": {module: max |x|},
"kv_cache": {layer: {"k": max |k|, "v": max |v|}}, "checkpoint": {"digest": of what was measured}}. A module is named
as in the checkpoint, without ".weight"; k and v are measured as they enter the cache.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtkit.checkpoints.digest import checkpoint_digest
from trtkit.checkpoints.json_fields import JsonFields, read_json_fields
from trtkit.conversion.kv_scales import LARGEST
from trtkit.conversion.static_scale import static_scale
from trtkit.errors import CheckpointError, InputError

SCHEMA = "trtkit.calibration/1"
_MAKE_ONE = "make this calibration file again with `trtkit calibrate`; docs/conversion.md describes it"
_LAYER = re.compile(r"(?:0|[1-9][0-9]{0,5})")  # one spelling for each layer: "00" would hide "0"


@dataclass(frozen=True)
class Calibration:
    """inputs: module name -> max |x| of what enters it. kv_cache: layer -> the limits of its keys and values.

    kv_format: the only cache format those are for, as a method chose them by its codes; None for plain maxima, which
    are for any.
    """

    inputs: dict[str, float]
    kv_cache: dict[int, tuple[float, float]]
    where: str
    kv_format: str | None = None

    def input_scale(self, modules: list[str], largest_code: float) -> float:
        """The activation scale of modules that share one. Raises InputError CONV-CALIBRATION when a limit is missing
        or gives no scale.
        """
        missing = [module for module in modules if module not in self.inputs]
        if missing:
            raise _missing(f"no input maximum for {missing[0]}", self.where)
        widest = max(modules, key=self.inputs.__getitem__)
        return self._scale(f"inputs:{widest}", self.inputs[widest], largest_code)

    def kv_scales(self, layer: int, kind: str) -> tuple[float, float]:
        """The scales of a layer's keys and values in an "fp8" or "int8" cache. Raises InputError CONV-CALIBRATION when
        their limits are missing, are for the other one, or give no scale.
        """
        if self.kv_format not in (None, kind):
            raise InputError(
                f"holds limits that were chosen for an {self.kv_format} KV cache, and this one is to be {kind}",
                f"run `trtkit calibrate` again with --set kv_cache.dtype={kind}: what it measured is used again",
                code="CONV-CALIBRATION",
                where=self.where,
            )
        if layer not in self.kv_cache:
            raise _missing(f"no key and value maxima for layer {layer}", self.where)
        keys, values = self.kv_cache[layer]
        stem, largest_code = f"kv_cache:{layer}", LARGEST[kind]
        return self._scale(f"{stem}:k", keys, largest_code), self._scale(f"{stem}:v", values, largest_code)

    def _scale(self, key: str, limit: float, largest_code: float) -> float:
        scale = static_scale(limit, largest_code)
        if scale is None:
            raise InputError(
                f"{key} is {limit:g}: divided by {largest_code:g} that is no float32 scale with a reciprocal",
                "measure again (`trtkit calibrate`), or correct the number",
                code="CONV-CALIBRATION",
                where=self.where,
            )
        return scale


def read_calibration(path: Path) -> Calibration:
    """Parse the file. Raises InputError CONV-CALIBRATION when it is missing, damaged, or of another kind."""
    with _as_calibration():
        return _parse(read_json_fields(path), str(path))


@contextmanager
def _as_calibration() -> Iterator[None]:
    """What is wrong with the file's JSON is wrong with a calibration file, not with a checkpoint."""
    try:
        yield
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
        kv_format=_kv_format(fields),
    )


def _kv_format(fields: JsonFields) -> str | None:
    """A file written by hand names no method: it holds maxima."""
    method = fields.object("method")
    if method is None or method.text("name") == "amax":
        return None
    return fields.text("kv_cache_dtype")


def refuse_foreign(path: Path, checkpoint: Path) -> None:
    """Raise InputError CALIB-CHECKPOINT when the file was measured on other weights than those in `checkpoint`.

    A file without a digest (written by hand) passes. Reads every byte of the checkpoint. Raises InputError
    CONV-CALIBRATION for a file that is missing or damaged.
    """
    with _as_calibration():
        origin = read_json_fields(path).object("checkpoint")
        digest = origin.text("digest") if origin is not None and origin.has("digest") else None
    if digest is not None and digest != checkpoint_digest(checkpoint):
        raise InputError(
            f"holds scales of another checkpoint than {checkpoint}: the weights' digests differ",
            "run `trtkit calibrate` on this checkpoint",
            code="CALIB-CHECKPOINT",
            where=str(path),
        )


def _kv_entry(caches: JsonFields, key: str) -> tuple[int, tuple[float, float]]:
    entry = caches.object(key) if _LAYER.fullmatch(key) else None
    if entry is None:
        caches.bad(repr(key[:20]), "should be a layer's number, as 0 or 17, with k and v")
    return int(key), (entry.number("k"), entry.number("v"))


def _missing(what: str, where: str) -> InputError:
    return InputError(
        f"{where or 'the options'} hold {what}",
        "calibrate this checkpoint (`trtkit calibrate`) and pass the file with --calibration",
        code="CONV-CALIBRATION",
        where=where or None,
    )


NO_CALIBRATION = Calibration({}, {}, "")
