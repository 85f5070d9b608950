"""What a repository says for requests that say nothing: the parameters of the BLS model. Knows no request."""

from dataclasses import dataclass

from trtkit.serving.arguments import ModelArguments
from trtkit.serving.context import RollingWindow


@dataclass(frozen=True)
class BuildDefaults:
    """What the repository says for requests that say nothing.

    max_draft_len 0 means that there is no draft; by_logits, that drafts are accepted by comparing distributions.
    """

    end_ids: tuple[int, ...]
    pad_id: int
    max_draft_len: int
    adaptive: bool
    max_input_len: int
    max_seq_len: int
    excludes_prompt: bool
    vocab_size: int
    by_logits: bool = False
    rolling: RollingWindow | None = None


def read_defaults(arguments: ModelArguments) -> BuildDefaults:
    """The parameters of the BLS model. Raises InputError naming the one that is missing or wrong."""
    drafts = bool(arguments.parameter("tensorrt_llm_draft_model_name", ""))
    return BuildDefaults(
        end_ids=arguments.numbers("end_ids"),
        pad_id=arguments.number("pad_id"),
        max_draft_len=arguments.number("max_draft_len", 0) if drafts else 0,
        adaptive=arguments.flag("adaptive_draft_length", default=False),
        max_input_len=arguments.number("max_input_len"),
        max_seq_len=arguments.number("max_seq_len"),
        excludes_prompt=arguments.flag("exclude_input_in_output", default=False),
        vocab_size=arguments.number("vocab_size"),
        by_logits=arguments.flag("use_draft_logits", default=False),
        rolling=_rolling(arguments),
    )


def _rolling(arguments: ModelArguments) -> RollingWindow | None:
    if not arguments.parameter("window_tokens", ""):
        return None
    return RollingWindow(*(arguments.number(key) for key in ("sink_tokens", "window_tokens", "evict_tokens")))
