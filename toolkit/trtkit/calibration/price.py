"""Price: what one KV cache costs in quality. The record only; price_pass.py measures it."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Price:
    """One precision and bound. kl: nats per token, from the unquantised cache's distribution; 0 for that itself.

    perplexity_error: the standard error of the perplexity's difference from the unquantised cache's, by which it would
    vary with other texts; both saw the same tokens.

    bytes_per_token: of a text as long as the longest that was priced; a bounded cache grows no further.
    """

    name: str
    bytes_per_token: int
    perplexity: float
    kl: float
    perplexity_error: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """A row of the JSON documents."""
        return asdict(self) | {"code": None, "cause": None}


@dataclass(frozen=True)
class NoPrice:
    """A cache whose quality is no number, and why. Its bytes are as a Price's."""

    name: str
    bytes_per_token: int
    cause: str
    code: str = "CALIB-NONFINITE"

    def as_dict(self) -> dict[str, Any]:
        """A row of the JSON documents, with the keys of a Price."""
        return asdict(self) | {"perplexity": None, "kl": None, "perplexity_error": None}


PriceRow = Price | NoPrice
