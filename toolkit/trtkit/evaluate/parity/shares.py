"""What a parity report must show to pass: nothing different, and shares of the prompts. Judges no answer."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trtkit.builds import Build
from trtkit.errors import DifferenceError, InputError
from trtkit.evaluate.parity.summary import diagnosis_lines, parity_summary


@dataclass(frozen=True)
class ParityShares:
    """Shares of the prompts: identical at least, near-tie at most; None leaves it to the build's YAML."""

    min_identical: float | None = None
    max_near_tie: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError for what is no share: nothing is below not-a-number, so it would pass as kept."""
        for name, value in asdict(self).items():
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} is {value}, a share is between 0 and 1", "give 0.9 for 90 %", code="LIMIT")

    def of(self, build: Build | None) -> dict[str, float]:
        """The shares that hold for this build, or for a server without one."""
        configured = build.config.verification if build is not None else None
        least = configured.min_identical if configured is not None else 0.0
        most = configured.max_near_tie if configured is not None else 1.0
        return {
            "min_identical": least if self.min_identical is None else self.min_identical,
            "max_near_tie": most if self.max_near_tie is None else self.max_near_tie,
        }


def refuse_difference(document: Mapping[str, Any]) -> None:
    """Raise DifferenceError when a check found answers that rounding does not explain, or a share is not kept."""
    if document["verdict"] == "different":
        raise DifferenceError(
            "\n".join([parity_summary(document), *diagnosis_lines(document)]),
            "see the first difference of each prompt in the report; a fault in weights or tokenizer shows early and in "
            "every prompt (trtkit parity checkpoint says where), one in caching or speculation only in requests that "
            "are repeated or have a draft length",
            code="PARITY",
        )
    if document["broken_shares"]:
        raise DifferenceError(
            "\n".join(document["broken_shares"]), "serve a finer dtype, or ask for less", code="PARITY-SHARE"
        )


def broken_shares(document: Mapping[str, Any]) -> Iterator[str]:
    """One line for each share of a parity report that is not kept."""
    shares, num_prompts = document["shares"], len(document["prompts"])
    identical, near_tie = (document[key] / num_prompts for key in ("identical", "near_tie"))
    least, most = shares["min_identical"], shares["max_near_tie"]
    if identical < least:
        yield f"{identical:.2%} of the prompts are identical, at least {least:.2%} are asked for"
    if near_tie > most:
        yield f"{near_tie:.2%} of the prompts are near-ties, at most {most:.2%} are allowed"
