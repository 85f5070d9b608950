"""TensorRT-LLM releases as data: what each offers, and which one an unknown version is nearest to. Checks nothing."""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"^(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?((?:\.(?:post)?\d+)*)$")
_FINAL = 10_000


@dataclass(frozen=True)
class Release:
    """One release of TensorRT-LLM.

    engine_flow: trtllm-build and its checkpoint format are in it. sinks: the builder accepts --streamingllm.
    reuse_default: what the Triton backend takes for an unset enable_kv_cache_reuse. decoding_type and draft_key are
    the spellings of the LLM API for draft-target, None where it has none that is stable. overlap_with_draft: the
    overlap scheduler may stay on. images: tags of NVIDIA's Triton images with this release; tensorrt: the version
    its engines are for, None without the engine flow.
    """

    version: str
    engine_flow: bool
    llmapi: bool
    sinks: bool
    reuse_default: bool
    decoding_type: str | None
    draft_key: str | None
    overlap_with_draft: bool
    images: tuple[str, ...] = ()
    tensorrt: str | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts like the version does: release candidates before the release."""
        parsed = parse_version(self.version)
        assert parsed is not None, f"the table holds an odd version {self.version}"
        return parsed


def parse_version(text: str) -> tuple[int, ...] | None:
    """(major, minor, patch, candidate, post) of a version; None when the text is none."""
    match = _VERSION.match(text)
    if match is None:
        return None
    major, minor, patch, candidate, rest = match.groups()
    post = int(re.sub(r"\D", "", rest) or 0)
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else _FINAL, post


def _engine_only(version: str, images: tuple[str, ...], tensorrt: str, *, reuse_default: bool) -> Release:
    """A release before 1.0: engines, sinks, and an LLM API that trtkit does not write for."""
    return Release(version, True, False, True, reuse_default, None, None, False, images, tensorrt)


def _both(version: str, images: tuple[str, ...], tensorrt: str) -> Release:
    """1.0 to 1.2: both flows, no sinks (streamingllm is asserted off), two-model drafts."""
    return Release(version, True, True, False, True, "DraftTarget", "speculative_model_dir", False, images, tensorrt)


def _llmapi_only(version: str) -> Release:
    """1.3 candidates and later: the LLM API alone, one-model drafts."""
    return Release(version, False, True, False, True, "Draft_Target", "speculative_model", True)


# Sources: release notes, Triton's compatibility matrix, PR #6379 (sinks), #11158 and #11758 (draft spelling),
# #15918 (engine flow removed). The 1.3 candidates up to rc15 still hold a deprecated engine flow; trtkit does not
# write for it.
RELEASES: tuple[Release, ...] = (
    _engine_only("0.17.0", ("25.01",), "10.8.0.43", reuse_default=False),
    _engine_only("0.17.0.post1", ("25.02",), "10.8.0.43", reuse_default=False),
    _engine_only("0.18.0", ("25.03",), "10.9.0.34", reuse_default=False),
    _engine_only("0.18.2", ("25.04",), "10.9.0.34", reuse_default=False),
    _engine_only("0.19.0", ("25.05",), "10.9.0.34", reuse_default=True),
    _engine_only("0.20.0", ("25.06", "25.07"), "10.10.0.31", reuse_default=True),
    _engine_only("0.21.0", ("25.08",), "10.11.0.33", reuse_default=True),
    _both("1.0.0", ("25.09", "25.10"), "10.11.0.33"),
    _both("1.0.3", ("25.11",), "10.13.3.9"),
    _both("1.1.0", ("25.12", "26.01", "26.02"), "10.13.3.9"),
    _both("1.2.0", ("26.03",), "10.14.1.48"),
    _both("1.2.1", ("26.04", "26.05", "26.06", "26.07"), "10.14.1.48"),
    *(_llmapi_only(f"1.3.0rc{n}") for n in (*range(16), *range(22, 30))),
    *(_llmapi_only(f"1.4.0rc{n}") for n in range(2)),
)
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]
NEWEST_ENGINE = max((r for r in RELEASES if r.engine_flow), key=lambda r: r.order)
NEWEST_SINKS = max((r for r in RELEASES if r.sinks), key=lambda r: r.order)
OLDEST_LLMAPI = min((r for r in RELEASES if r.llmapi), key=lambda r: r.order)


def find_release(version: str) -> Release | None:
    """The release with this version; "1.2" finds "1.2.0", a container's fourth number is ignored."""
    wanted = parse_version(version)
    if wanted is None:
        return None
    exact = next((release for release in RELEASES if release.order == wanted), None)
    return exact or next((release for release in RELEASES if release.order[:4] == wanted[:4]), None)


def nearest_release(version: str) -> Release:
    """The known release next to an unknown version: the newest that is not newer, else the oldest."""
    wanted = parse_version(version)
    if wanted is None:
        return NEWEST_ENGINE
    not_newer = [release for release in RELEASES if release.order <= wanted]
    return not_newer[-1] if not_newer else OLDEST
