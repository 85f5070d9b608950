"""docs/findings.md out of the tables of findings. Knows Markdown and the order of the page, no rule in particular."""

from collections.abc import Iterator
from typing import Any, get_args

from trtkit.checking.catalogue import all_rules
from trtkit.checking.raised import RaisedFinding
from trtkit.checking.raised_codes import RAISED
from trtkit.checking.rule import LooksAt, Rule

_HEADINGS: dict[str, str] = {
    "YAML": "The build YAML",
    "pair": "Draft and target together",
    "checkpoint": "A Hugging Face checkpoint",
    "TensorRT-LLM checkpoint": "A TensorRT-LLM checkpoint",
    "engine": "An engine directory",
    "repository": "A Triton model repository",
    "build": "A build directory, and the machine it is to run on",
    "machine": "A machine",
}
_EXAMPLE_FILES = {
    "YAML": "pair.yaml",
    "pair": "pair.yaml",
    "checkpoint": "model",
    "TensorRT-LLM checkpoint": "checkpoints/target",
    "engine": "engines/target",
    "repository": "model_repository",
    "build": "build/pair/manifest.json",
    "machine": "machine",
}
_INTRODUCTION = """\
# Findings

What `trtkit check`, `trtkit build` and `trtkit doctor` may report. This page is written from the tables that the
checks use (`pytest tests/checking/test_documentation.py --update-golden`).

```bash
trtkit check build_configs/smollm2_spec.yaml
trtkit check build_configs/smollm2_spec.yaml --strict --ignore SPEC-DRAFT-SIZE --json
```

An **error** makes the deployment impossible, and the command exits with 2. A **warning** is something that works
otherwise than it reads, or rarely pays; `--strict` makes it fail. A **note** is worth knowing. `--ignore CODE` leaves a
finding out; a build records it in its manifest.

`trtkit check` takes a build YAML, a Hugging Face checkpoint (folder or hub id in the cache), a TensorRT-LLM checkpoint,
an engine directory, a model repository (also one that trtkit did not write) or a build directory.
`--json` prints `{"schema", "ok", "target", "findings": [{"code", "severity", "where", "cause", "fix"}], "ignored"}`.
"""


def findings_page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    rules = {(rule.code, rule.looks_at): rule for rule in all_rules()}
    for looks_at in get_args(LooksAt):
        yield f"## {_HEADINGS[looks_at]}\n"
        for rule in rules.values():
            if rule.looks_at == looks_at:
                yield _rule(rule)
        for raised in RAISED:
            if raised.looks_at == looks_at:
                yield _raised(raised)


def _rule(rule: Rule[Any]) -> str:
    example = rule.finding(rule.example, _EXAMPLE_FILES[rule.looks_at])
    return _entry(rule.code, rule.severity, rule.when, f"{example.where}: {example.cause}", example.fix, rule.source)


def _raised(raised: RaisedFinding) -> str:
    return _entry(raised.code, raised.severity, raised.when, raised.example, None, raised.source)


def _entry(code: str, severity: str, when: str, example: str, fix: str | None, source: str) -> str:
    lines = [f"### {code}\n", f"*{severity}* when {_inline(when)}.\n", f"```text\n{example}"]
    lines += [f"fix: {fix}\n```\n"] if fix else ["```\n"]
    return "\n".join([*lines, f"Known from: {_inline(source)}.\n"])


def _inline(text: str) -> str:
    """Text outside of a code block, without letters that Markdown reads as markup."""
    return text.replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;").replace("{", "&#123;")
