"""One line for one mistake in a build config: its path, what is wrong, what was meant. Reads no file."""

import datetime
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from trtkit.config.schema import BuildConfig

_KINDS = ("none", "draft_target")  # of speculation; steps of pydantic's loc
# TensorRT-LLM's own names, without underscores -> what stands for them here. Its word for attention sinks is often
# taken for the streaming of tokens (TensorRT-LLM issue #6207), and nobody knows which limit bites (#1780, #2702).
_MISTAKABLE = {
    "streamingllm": "serving.streaming streams tokens, attention_sinks keeps endless sessions",
    "sinktokenlength": "write attention_sinks: {sink_tokens: ..., window_tokens: ...}",
    **dict.fromkeys(
        ("maxattentionwindow", "maxattentionwindowsize"),
        "a build writes the windows that the model has; attention_sinks keeps endless sessions",
    ),
    "maxseqlen": "it is max_input_len + max_output_len, and max_draft_len with a draft; `trtkit plan` states it",
    "maxnumtokens": "it follows from the limits; `trtkit plan` states it",
    "maxbeamwidth": "a build has one beam, as streams and drafts take no more",
    **dict.fromkeys(
        (
            "freegpumemoryfraction",
            "kvcachefreegpumemoryfraction",
            "kvcachefreegpumemfraction",
            "maxtokensinpagedkvcache",
        ),
        "a build works it out for both models; `trtkit plan` states it",
    ),
    **dict.fromkeys(("usepagedcontextfmha", "usefp8contextfmha"), "it follows from kv_cache.reuse and kv_cache.dtype"),
    **dict.fromkeys(("enablekvcachereuse", "enableblockreuse"), "write kv_cache: {reuse: true}"),
    **dict.fromkeys(
        ("gathercontextlogits", "gathergenerationlogits", "gatheralltokenlogits"),
        "only a draft hands out logits, and only for speculation.acceptance: logits",
    ),
    "numdrafttokens": "write speculation.max_draft_len",
    "speculativedecodingmode": "write speculation: {kind: draft_target}",
}
_LONGEST_SHOWN = 60


def explain(detail: ErrorDetails) -> str:
    """One line for one mistake; for an unknown key or word the nearest known one."""
    path = [str(part) for part in detail["loc"]]
    where = ".".join(part for part in path if part not in _KINDS) or "the document"
    if detail["type"] == "extra_forbidden":
        return f"{where}: {_unknown_key(path)}"
    say = _SENTENCES.get(detail["type"])
    return f"{where}: {say(detail['input'], detail.get('ctx', {})) if say else detail['msg']}"


def known_keys(path: Sequence[str]) -> list[str]:
    """The keys allowed in the section at `path` (a union member counts as a step, as in pydantic's loc)."""
    sections: list[type[BaseModel]] = [BuildConfig]
    for step in path:
        inner = [m for s in sections if step in s.model_fields for m in _models_in(s.model_fields[step].annotation)]
        sections = inner or sections
    return sorted({key for section in sections for key in section.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The section classes inside an annotation such as `Gpu | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def _unknown_key(path: Sequence[str]) -> str:
    meant = _MISTAKABLE.get(path[-1].replace("_", "").lower())
    if meant is not None:
        return f"unknown key; {meant}"
    known = known_keys(path[:-1])
    if path[-1] in known:  # of another member of the union
        kind = next(part for part in path if part in _KINDS)
        return f"not a key of kind {kind}; leave it out, or write the whole section: speculation: {{kind: {kind}}}"
    return "unknown key" + _nearest(path[-1], known)


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1) or [name for name in known if word and name.startswith(word)]
    return f", did you mean {close[0]}?" if close else ""


def _section(given: Any, _: Mapping[str, Any]) -> str:
    if given is None:
        return "the section is empty; write its keys, or leave it out"
    return f"must be a section with keys of its own, not {_shown(given)}"


def _no_kind(given: Any, _: Mapping[str, Any]) -> str:
    return f"lacks its key kind; write kind: {' or kind: '.join(_KINDS)}"


def _unknown_kind(_: Any, context: Mapping[str, Any]) -> str:
    word = str(context["tag"])
    return f"kind {word} is unknown{_nearest(word, _KINDS)}; there are {' and '.join(_KINDS)}"


def _no_choice(given: Any, context: Mapping[str, Any]) -> str:
    words = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ",").split(",")]
    near = _nearest(given, words) if isinstance(given, str) else ""
    return f"{_shown(given)} is none of {', '.join(words)}{near}"


def _no_text(given: Any, _: Mapping[str, Any]) -> str:
    if given is None:
        return "is empty"
    kinds = {bool: "yes or no", int: "a number", float: "a number", datetime.date: "a date"}
    kind = next((words for form, words in kinds.items() if isinstance(given, form)), None)
    if kind is None:
        return f"must be a text, not {_shown(given)}"
    return f"YAML reads {_shown(given)} as {kind}; write it in quotes"


def _bound(words: str, key: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda given, context: f"must be {words} {context[key]}, not {_shown(given)}"


def _must_be(words: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda given, _: f"must be {words}, not {_shown(given)}"


def _shown(value: Any) -> str:
    """The value as YAML writes it, not longer than a line."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else str(value) if value != "" else "an empty text"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


# pydantic's name of a mistake -> what to say about the value, given what pydantic knows besides.
_SENTENCES: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "missing": lambda *_: "is missing",
    "model_type": _section,
    "model_attributes_type": _section,
    "union_tag_not_found": _no_kind,
    "union_tag_invalid": _unknown_kind,
    "literal_error": _no_choice,
    "string_type": _no_text,
    "string_pattern_mismatch": _must_be("letters, digits, dots, dashes and underscores, a letter or a digit first"),
    "int_type": _must_be("a whole number"),
    "float_type": _must_be("a number"),
    "finite_number": _must_be("a finite number"),
    "bool_type": _must_be("true or false (without quotes)"),
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "value_error": lambda _, context: str(context["error"]),
}
