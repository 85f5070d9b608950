"""Price: what one KV precision costs. The record only; price_pass.py measures it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """One precision. kl: nats per token, from the unquantised cache's distribution; 0 for that itself."""

    name: str
    bytes_per_token: int
    perplexity: float
    kl: float
