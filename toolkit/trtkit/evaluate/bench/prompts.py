"""The requests of a bench: prompts as a build's template renders them, repeated to the number asked for, or a trace."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from trtkit.builds import Build
from trtkit.errors import InputError
from trtkit.evaluate.bench.plan import BenchPrompt
from trtkit.evaluate.bench.traffic import read_trace
from trtkit.evaluate.oracle.libraries import require_oracle_libraries
from trtkit.evaluate.oracle.record import SkippedPrompt
from trtkit.evaluate.oracle.record_choice import PromptChoice
from trtkit.prompts.files import Prompt

_UNKNOWN_LENGTH = 64
_ROOM_FOR_TAG = 16


def bench_prompts(
    build: Build | None, choice: PromptChoice, num_requests: int
) -> tuple[tuple[BenchPrompt, ...], tuple[SkippedPrompt, ...]]:
    """The prompts to send, and those that are left out since they cannot be rendered or taken.

    Raises InputError when none can be sent.
    """
    length = answer_length(build, choice)
    prompts = choice.read(build)
    rendered, skipped = _rendered(build, prompts) if build is not None else _plain(prompts)
    sent = [BenchPrompt(text, min(p.output_length or length, length), p.group) for p, text in rendered]
    if not sent:
        raise InputError("none of the prompts can be sent", "give others with --prompts", code="PROMPTS")
    return tuple(itertools.islice(itertools.cycle(sent), num_requests)), tuple(skipped)


def trace_prompts(build: Build | None, choice: PromptChoice, path: Path) -> tuple[BenchPrompt, ...]:
    """The requests of a trace with their times; --limit takes the first of them."""
    return tuple(read_trace(path, answer_length(build, choice))[: choice.limit])


def answer_length(build: Build | None, choice: PromptChoice) -> int:
    """Tokens to generate per prompt, at most what the deployment allows."""
    return choice.length(build) if build is not None else choice.max_new_tokens or _UNKNOWN_LENGTH


_Rendered = tuple[list[tuple[Prompt, str]], list[SkippedPrompt]]


def _plain(prompts: Sequence[Prompt]) -> _Rendered:
    """Those that are texts; the template of a chat is the build's."""
    reason = "a chat, and a URL does not tell its template"
    skipped = [SkippedPrompt(prompt.name, prompt.key, reason) for prompt in prompts if prompt.text is None]
    return [(prompt, prompt.text) for prompt in prompts if prompt.text is not None], skipped


def _rendered(build: Build, prompts: list[Prompt]) -> _Rendered:
    require_oracle_libraries()
    # transformers takes a second to import; --help and a URL do without it.
    from trtkit.evaluate.oracle.recording import encode_prompts
    from trtkit.prompts.encoding import PromptEncoder

    encoder = PromptEncoder.load(build.tokenizer)
    encoded, skipped = encode_prompts(encoder, prompts, build.config.limits.max_input_len - _ROOM_FOR_TAG)
    return [(prompt, sent.text) for prompt, sent in encoded], skipped
