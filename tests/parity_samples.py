"""Small parity records, written by hand for the tests of evaluate."""

from trtkit.evaluate.endpoints.endpoint import Generation
from trtkit.evaluate.oracle.record import OracleStep, RecordedAnswer, RecordHeader

END = 2


def header(**changes: object) -> RecordHeader:
    values: dict[str, object] = {
        "checkpoint": "tiny",
        "digest": "d1",
        "dtype": "float32",
        "weights_dtype": "float32",
        "num_layers": 2,
        "hidden_size": 16,
        "vocab_size": 32,
        "max_row_norm": 1.0,
        "end_ids": (END,),
        "max_new_tokens": 4,
        "versions": {"trtkit": "0"},
    }
    return RecordHeader(**{**values, **changes})  # type: ignore[arg-type]


def step(token: int, runner_up: int, margin: float) -> OracleStep:
    """A step with two recorded tokens; the state has length 4 and the two rows are 1 apart."""
    return OracleStep(10.0, 4.0, (token, runner_up), (0.0, margin), (0.0, 1.0), -0.1)


def answer(name: str, *steps: OracleStep, group: str = "short", prompt_ids: tuple[int, ...] = (5, 6)) -> RecordedAnswer:
    token_ids = tuple(each.token_ids[0] for each in steps)
    reason = "end_id" if token_ids[-1] == END else "length"
    return RecordedAnswer(name, group, f"key-{name}", f"text of {name}", prompt_ids, token_ids, reason, steps)


def deployed(*token_ids: int, num_prompt_tokens: int | None = None) -> Generation:
    return Generation(token_ids, sent_ns=0, arrivals=(), num_prompt_tokens=num_prompt_tokens)
