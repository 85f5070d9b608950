"""Price: what one KV cache costs in quality. The record only; price_pass.py measures it."""

from dataclasses import dataclass


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
