"""A token of somebody else's answer in the eyes of the oracle. Knows figures, no model and no verdict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoredToken:
    """One token of a deployed answer as the oracle sees it after the deployment's own previous tokens.

    gap is the oracle's best logit minus the token's, 0 where the token is the oracle's own choice, infinite where the
    oracle has no such token; state_norm and distance as in OracleStep.
    """

    oracle_token: int
    token: int
    gap: float
    best_logit: float
    state_norm: float
    distance: float
