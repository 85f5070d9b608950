"""docs/config.md is the schema's own words: every key, type, default and docstring."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from trtkit.config.schema import BuildConfig

HEAD = """# The build YAML

One file describes one deployment. Unknown keys are errors; `--set section.key=value` wins over the file.
`trtkit init --list` shows the presets to start from. Written from `toolkit/trtkit/config/schema.py` by a test
(`pytest tests/test_docs_config.py --update-golden`).
"""


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]


def type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " \\| ".join(f"`{value}`" for value in get_args(annotation))
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    if sections_in(annotation):
        return "section" + (" \\| null" if type(None) in get_args(annotation) else "")
    arguments = [type_name(argument) for argument in get_args(annotation) if not hasattr(argument, "ge")]
    return " \\| ".join(arguments) if arguments else getattr(annotation, "__name__", str(annotation))


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return "see the section"
    return (
        "null"
        if field.default is None
        else f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
    )


def rows(section: type[BaseModel]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in section.model_fields.items():
        assert field.description, f"{section.__name__}.{key} has no docstring"
        yield f"| `{key}` | {type_name(field.annotation)} | {default_of(field)} | {field.description} |"


def page() -> str:
    parts = [HEAD, "## Top level\n\n" + "\n".join(rows(BuildConfig))]
    seen: set[type[BaseModel]] = set()
    for key, field in BuildConfig.model_fields.items():
        for section in sections_in(field.annotation):
            if section not in seen:
                seen.add(section)
                users = [k for k, f in BuildConfig.model_fields.items() if section in sections_in(f.annotation)]
                kind = section.model_fields.get("kind")
                title = ", ".join(f"`{user}`" for user in users)
                title += f" (kind `{get_args(kind.annotation)[0]}`)" if kind and key == "speculation" else ""
                parts.append(f"## {title}\n\n{section.__doc__}\n\n" + "\n".join(rows(section)))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def test_the_page_says_what_the_schema_says(assert_golden: Callable[[str, Path], None], repository_root: Path) -> None:
    assert_golden(page(), repository_root / "docs" / "config.md")
