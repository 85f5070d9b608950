"""TOK-BEYOND: one wording for a finding that both a lone checkpoint and a deployment can show. Knows no subject."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from trtkit.checking.rule import Hit, Rule

S = TypeVar("S")


def tokenizer_beyond_model(find: Callable[[S], Iterable[Hit]], example: Hit) -> Rule[S]:
    """The rule for one kind of subject; a hit has the values role, largest and size."""
    return Rule(
        code="TOK-BEYOND",
        severity="error",
        looks_at="checkpoint",
        when="a tokenizer has ids beyond its own model's vocabulary",
        cause="the {role}'s tokenizer goes up to id {largest}, its config.json says vocab_size {size}",
        fix="use the tokenizer of the same checkpoint, or resize the embeddings",
        source="config.json and tokenizer.json of one folder",
        find=find,
        example=example,
    )
