"""Encoding: which encoder each kind of tensor gets under given options. Knows the choice, not the numbers."""

from collections.abc import Callable, Sequence
from typing import Protocol

from trtkit.conversion.layout import Target
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.plain_encoder import PlainEncoder, Sinks
from trtkit.conversion.plan import ConversionPlan
from trtkit.conversion.rank_file import TensorHeader
from trtkit.conversion.source_files import SourceFiles


class Encoder(Protocol):
    """Turns targets into tensors of rank files; announces first what it will append, since a header precedes data."""

    def headers(self, target: Target) -> list[TensorHeader]:
        """What `write` appends for `target`, in order."""
        ...

    def write(self, targets: Sequence[Target], sinks: Sinks) -> None:
        """Append to every sink; targets[r] is rank r's part of the same tensor."""
        ...


EncoderOf = Callable[[Target], Encoder]


def encoders_for(plan: ConversionPlan, source: SourceFiles) -> EncoderOf:
    """The encoder of each target."""
    options: ConversionOptions = plan.options
    plain = PlainEncoder(source, options.dtype)
    norm = PlainEncoder(source, options.dtype, plan.spec.norms_add_one)
    router = PlainEncoder(source, "float32")

    def encoder_of(target: Target) -> Encoder:
        return {"norm": norm, "router": router}.get(target.kind, plain)

    return encoder_of
