"""Speculative sampling on models that are tables, many samples at a time, with the engine's own sampling functions.

A table gives the logits of the next token by the last one. Penalties make them depend on the whole past; then a row is
computed for every past that occurs.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from trtkit.reference.sampling.params import SamplingParams
from trtkit.reference.sampling.rejection import accepts, recover
from trtkit.reference.sampling.sampler import choose, probabilities
from trtkit.reference.sampling.scores import Past, adjust

VOCAB = 6
PROMPT = (0, 3, 3)

Accepts = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Recover = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rule:
    """How a draft is judged; the default is the engine's."""

    accepts: Accepts = accepts
    recover: Recover = recover


class Table:
    """A model: [VOCAB, VOCAB] logits by last token. Pasts are [S, n] token ids, the prompt left out."""

    def __init__(self, logits: Tensor, params: SamplingParams) -> None:
        self._logits = logits
        self.params = params

    def scores(self, past: Tensor) -> Tensor:
        """[S, VOCAB] after temperature and penalties."""
        rows, index = self._rows(past)
        return rows[index]

    def probabilities(self, past: Tensor) -> Tensor:
        """[S, VOCAB] float64, what a token is drawn from."""
        rows, index = self._rows(past)
        return probabilities(rows, self.params)[index]

    def _rows(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """(scores of every different past [R, VOCAB], which of them each past is [S])."""
        code = torch.zeros(len(past), dtype=torch.int64)
        for column in past.T:
            code = code * VOCAB + column if self.params.has_penalties else column
        codes, index = torch.unique(code, return_inverse=True)
        length = past.shape[1] if self.params.has_penalties else min(past.shape[1], 1)
        return torch.stack([self._row(int(each), length) for each in codes]), index

    def _row(self, code: int, length: int) -> Tensor:
        tokens = [code // VOCAB**i % VOCAB for i in reversed(range(length))]
        last = tokens[-1] if tokens else PROMPT[-1]
        return adjust(self._logits[last], self.params, Past(counts=Counter([*PROMPT, *tokens])))


@dataclass(frozen=True)
class Speculation:
    """A target, a draft, a draft length and a rule."""

    target: Table
    draft: Table
    draft_len: int
    rule: Rule = Rule()

    def first_two_tokens(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """[num_samples, 2]: as many rounds as two tokens take."""
        first = self._round(torch.zeros(num_samples, 0, dtype=torch.int64), generator)[:, :2]
        open_rows = first[:, 1] < 0
        if open_rows.any():
            first[open_rows, 1] = self._round(first[open_rows, :1], generator)[:, 0]
        return first

    def joint(self) -> dict[int, float]:
        """Probability of each pair of first tokens under the target alone; a pair is first * VOCAB + second."""
        nothing = torch.zeros(1, 0, dtype=torch.int64)
        first = self.target.probabilities(nothing)[0]
        second = self.target.probabilities(torch.arange(VOCAB)[:, None])
        return dict(enumerate((first[:, None] * second).reshape(-1).tolist()))

    def _round(self, past: Tensor, generator: torch.Generator) -> Tensor:
        """[S, draft_len + 1] tokens of one draft and its verification, -1 behind the last."""
        seen = past
        for _ in range(self.draft_len):
            drawn = choose(self.draft.scores(seen), self.draft.params, _noise(len(past), generator))
            seen = torch.cat([seen, drawn[:, None]], dim=1)
        tokens = torch.full((len(past), self.draft_len + 1), -1)
        alive = torch.arange(len(past))
        for position in range(self.draft_len):
            context, drafted = seen[alive, : past.shape[1] + position], seen[alive, past.shape[1] + position]
            target, draft = self.target.probabilities(context), self.draft.probabilities(context)
            keeps = self.rule.accepts(target, draft, drafted, _noise(len(alive), generator))
            instead = self.rule.recover(target, draft, _noise(len(alive), generator))
            tokens[alive, position] = torch.where(keeps, drafted, instead)
            alive = alive[keeps]
            if not len(alive):
                return tokens
        scores = self.target.scores(seen[alive])
        tokens[alive, self.draft_len] = choose(scores, self.target.params, _noise(len(alive), generator))
        return tokens


def _noise(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)
