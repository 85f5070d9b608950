"""TensorRT-LLM releases: what each offers, and which one a version means. Knows the records, not their files."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtkit.engines.release_files import read_releases

_VERSION = re.compile(r"^(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?((?:\.(?:post)?\d+)*)$")
_FINAL = 10_000

FlagKind = Literal["text", "int", "choice", "enum", "switch"]


@dataclass(frozen=True)
class Flag:
    """One option of trtllm-build.

    kind: "choice" compares exactly, "enum" without regard to case, "switch" takes no value. many: takes one value or
    more. default None is argparse's None; the values of a plugin option are texts, as on the command line.
    """

    name: str
    kind: FlagKind
    default: Any = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    many: bool = False


@dataclass(frozen=True)
class BuildGrammar:
    """The command line of trtllm-build and what it writes.

    flags and plugins by name, without the dashes; a plugin option also stands in the engine's plugin_config, where
    hidden_plugins are fields that have no option. build_defaults: fields of build_config without an option.
    auto_parallel: build_config holds an auto_parallel_config.
    """

    flags: Mapping[str, Flag]
    plugins: Mapping[str, Flag]
    hidden_plugins: Mapping[str, Any]
    build_defaults: Mapping[str, Any]
    auto_parallel: bool


@dataclass(frozen=True)
class LlmApi:
    """The LLM API of a release, PyTorch backend.

    keys, kv_cache_keys, speculative_keys and triton_keys are what the strict parsers of the release know; a key that
    is not known to be known is left out. decoding_type and draft_key are the spellings for draft-target.
    overlap_with_draft: the overlap scheduler may stay on; reuse_with_draft: block reuse takes effect with a draft.
    config_flag: how trtllm-serve is given a YAML. pipeline_environment: variables that pipeline parallelism needs as a
    work-around of a known bug. triton_inputs, triton_outputs: tensors of Triton's llmapi model.
    """

    decoding_type: str
    draft_key: str
    overlap_with_draft: bool
    reuse_with_draft: bool
    config_flag: str
    pipeline_environment: Mapping[str, str]
    keys: frozenset[str]
    kv_cache_keys: frozenset[str]
    speculative_keys: frozenset[str]
    triton_keys: frozenset[str]
    triton_inputs: tuple[str, ...]
    triton_outputs: tuple[str, ...]


@dataclass(frozen=True)
class TritonBackend:
    """NVIDIA's C++ backend `tensorrtllm` of a release: the names its config.pbtxt may hold.

    reuse_default: what it takes for an unset enable_kv_cache_reuse.
    """

    reuse_default: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: frozenset[str]


@dataclass(frozen=True)
class KnownBug:
    """A defect of a release: where it is reported, and what a user sees.

    when: what a deployment has in common that is hit by it (backend, architecture, quantization, kv_cache,
    speculation); empty for a defect that no YAML shows.
    """

    issue: str
    what: str
    when: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """One release of TensorRT-LLM.

    build and triton are None without the engine flow, llm_api is None where trtkit does not write for it. sinks: the
    builder accepts --streamingllm. image is the container, `images` its tags with this release, newest last;
    tensorrt: the version its engines are for.
    """

    version: str
    sources: tuple[str, ...]
    image: str
    images: tuple[str, ...]
    tensorrt: str | None
    cuda: str | None
    torch: str | None
    python: str
    sinks: bool
    known_bugs: tuple[KnownBug, ...]
    build: BuildGrammar | None
    triton: TritonBackend | None
    llm_api: LlmApi | None

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts like the version does: release candidates before the release."""
        parsed = parse_version(self.version)
        assert parsed is not None, f"the data hold an odd version {self.version}"
        return parsed

    @property
    def engine_flow(self) -> bool:
        """Whether trtllm-build and its checkpoint format are in it, and trtkit writes for them."""
        return self.build is not None

    @property
    def llmapi(self) -> bool:
        """Whether trtkit writes YAML for its LLM API."""
        return self.llm_api is not None

    @property
    def overlap_with_draft(self) -> bool:
        """Whether the LLM API's overlap scheduler may stay on with a draft; false without an LLM API."""
        return self.llm_api is not None and self.llm_api.overlap_with_draft

    @property
    def container(self) -> str | None:
        """The newest image with this release, or None when there is none."""
        return self.image.format(tag=self.images[-1]) if self.images else None


@functools.cache
def releases() -> tuple[Release, ...]:
    """Every release that trtkit knows, oldest first."""
    return tuple(sorted(map(_release, read_releases()), key=lambda release: release.order))


def parse_version(text: str) -> tuple[int, ...] | None:
    """(major, minor, patch, candidate, post) of a version, without a local suffix; None when the text is none."""
    match = _VERSION.match(text.partition("+")[0])
    if match is None:
        return None
    major, minor, patch, candidate, rest = match.groups()
    post = int(re.sub(r"\D", "", rest) or 0)
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else _FINAL, post


def find_release(version: str) -> Release | None:
    """The release with this version; "1.2" finds "1.2.0", a container's fourth number is ignored."""
    wanted = parse_version(version)
    if wanted is None:
        return None
    exact = next((release for release in releases() if release.order == wanted), None)
    return exact or next((release for release in releases() if release.order[:4] == wanted[:4]), None)


def nearest_release(version: str) -> Release:
    """The known release next to an unknown version: the newest that is not newer, else the oldest."""
    wanted = parse_version(version)
    if wanted is None:
        return newest_engine_release()
    not_newer = [release for release in releases() if release.order <= wanted]
    return not_newer[-1] if not_newer else releases()[0]


def newest_engine_release() -> Release:
    """The last release with the engine flow."""
    return [release for release in releases() if release.engine_flow][-1]


def newest_sinks_release() -> Release:
    """The last release whose builder accepts --streamingllm."""
    return [release for release in releases() if release.sinks][-1]


def oldest_llmapi_release() -> Release:
    """The first release whose LLM API trtkit writes for."""
    return next(release for release in releases() if release.llmapi)


def _release(data: Mapping[str, Any]) -> Release:
    values = dict(data)
    build, triton, llm_api = values.pop("build"), values.pop("triton"), values.pop("llm_api")
    bugs = tuple(KnownBug(**bug) for bug in values.pop("known_bugs"))
    return Release(
        sources=tuple(values.pop("sources")),
        images=tuple(values.pop("images")),
        torch=values.pop("torch", None),
        known_bugs=bugs,
        build=_grammar(build) if build else None,
        triton=_triton(triton) if triton else None,
        llm_api=_llm_api(llm_api) if llm_api else None,
        **values,
    )


def _grammar(data: Mapping[str, Any]) -> BuildGrammar:
    values = dict(data)
    sets: Mapping[str, list[str]] = values.pop("choice_sets")
    return BuildGrammar(
        flags={name: _flag(name, flag, sets) for name, flag in values.pop("flags").items()},
        plugins={name: _flag(name, flag, sets) for name, flag in values.pop("plugins").items()},
        **values,
    )


def _flag(name: str, data: Mapping[str, Any], sets: Mapping[str, list[str]]) -> Flag:
    values = dict(data)
    choices = values.pop("choices", ())
    named = sets[choices] if isinstance(choices, str) else choices
    return Flag(name, choices=tuple(named), aliases=tuple(values.pop("aliases", ())), **values)


def _triton(data: Mapping[str, Any]) -> TritonBackend:
    return TritonBackend(
        reuse_default=data["reuse_default"],
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        parameters=frozenset(data["parameters"]),
    )


def _llm_api(data: Mapping[str, Any]) -> LlmApi:
    values: dict[str, Any] = dict(data)
    for name in ("keys", "kv_cache_keys", "speculative_keys", "triton_keys"):
        values[name] = frozenset(values[name])
    for name in ("triton_inputs", "triton_outputs"):
        values[name] = tuple(values[name])
    return LlmApi(**values)
