"""How a deployment computes and stores, and what that explains by a record. Knows builds and records, no server."""

from collections.abc import Mapping
from dataclasses import dataclass

from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.oracle.record import ParityRecord, ServedFormats
from trtkit.evaluate.oracle.tolerance import Dtype, NumericProfile, loses_bits

REPRODUCIBLE = ("int8_weight_only", "int4_weight_only")
"""Formats whose rounding follows from the checkpoint alone: largest of a row, over 128 or 8. The oracle can have the
very same matrices, so that its tolerance need not excuse them."""


@dataclass(frozen=True)
class GivenFormats:
    """What the user says of a server whose build is not at hand; None is what the record was made for."""

    dtype: Dtype | None = None
    kv_dtype: str | None = None
    quantization: str | None = None

    def refuse_for(self, build: Build) -> None:
        """Raise InputError when any is given: a build says itself how it computes, and two answers may differ."""
        given = [name for name in ("dtype", "kv_dtype", "quantization") if getattr(self, name) is not None]
        if given:
            raise InputError(
                f"{build.folder} says itself how it computes and stores",
                f"leave --{given[0].replace('_', '-')} out; it is for servers given by URL",
                code="PARITY-FORMAT",
            )

    def over(self, formats: ServedFormats) -> ServedFormats:
        """The given ones, and those formats where none is given."""
        return ServedFormats(
            self.dtype or formats.dtype,
            self.kv_dtype or formats.kv_dtype,
            self.quantization or formats.quantization,
        )


def formats_of(build: Build) -> ServedFormats:
    """Those of a build's target."""
    target = build.config.target
    return ServedFormats(target.dtype, build.config.kv_cache.dtype, target.quantization)


def oracle_quantization(formats: ServedFormats) -> str:
    """What the oracle's own matrices are rounded to for such a deployment."""
    return formats.quantization if formats.quantization in REPRODUCIBLE else "none"


def numeric_profile(record: ParityRecord, formats: ServedFormats) -> NumericProfile:
    """What rounding explains of a deployment in these formats.

    Raises InputError when the record was not made for them: what a format explains is measured with the oracle.
    """
    header = record.header
    own = oracle_quantization(formats)
    if header.quantization != own:
        raise InputError(
            f"the recorded oracle has layers in {header.quantization}, for this deployment they should be in {own}",
            "make the record of a build with that quantization: trtkit parity record BUILD",
            code="PARITY-RECORD",
        )
    return NumericProfile(
        dtype=formats.dtype,
        num_layers=header.num_layers,
        hidden_size=header.hidden_size,
        weights_rounded=own != "none" or loses_bits(header.weights_dtype, formats.dtype),
        conditioning=record.conditioning,
        oracle_dtype=header.dtype,
        kv_error=_measured(record.kv_errors, formats.kv_dtype, ("auto",), "a cache in"),
        weight_error=_measured(record.weight_errors, formats.quantization, ("none", own), "layers in"),
        quantization=formats.quantization,
    )


def _measured(errors: Mapping[str, float], kind: str, exact: tuple[str, ...], what: str) -> float:
    if kind in exact:
        return 0.0
    if kind not in errors:
        raise InputError(
            f"the record does not say what {what} {kind} explain",
            "make it of a build with that format: trtkit parity record BUILD",
            code="PARITY-RECORD",
        )
    return errors[kind]
