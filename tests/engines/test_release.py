"""The release files: complete, consistent with each other, and found by the names people write."""

import itertools

import pytest
from trtkit.engines.release import (
    Release,
    find_release,
    nearest_release,
    newest_engine_release,
    newest_sinks_release,
    oldest_llmapi_release,
    parse_version,
    releases,
)
from trtkit.engines.release_files import read_releases

WITH_ENGINES = [release for release in releases() if release.build]


def test_releases_are_sorted_and_named_once() -> None:
    orders = [release.order for release in releases()]
    assert orders == sorted(set(orders))


def test_the_range_is_the_documented_one() -> None:
    assert (releases()[0].version, newest_engine_release().version) == ("0.17.0", "1.2.1")
    assert (oldest_llmapi_release().version, releases()[-1].version) == ("1.0.0", "1.4.0rc1")
    assert newest_sinks_release().version == "0.21.0"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("1.2.1", "1.2.1"),
        ("1.2", "1.2.0"),
        ("1.0.3.2510", "1.0.3"),
        ("0.17.0.post1", "0.17.0.post1"),
        ("1.2.1+cu131", "1.2.1"),
        ("1.3.0rc8", "1.3.0rc8"),
        ("1.3.0rc7", None),
        ("1.3.0rc17", None),
        ("2.0.0", None),
        ("newest", None),
    ],
)
def test_a_version_means_one_release_or_none(written: str, found: str | None) -> None:
    release = find_release(written)
    assert (release.version if release else None) == found


@pytest.mark.parametrize(
    ("written", "nearest"), [("1.2.7", "1.2.1"), ("0.12.0", "0.17.0"), ("9.9.9", "1.4.0rc1"), ("x", "1.2.1")]
)
def test_an_unknown_version_has_a_nearest_one(written: str, nearest: str) -> None:
    assert nearest_release(written).version == nearest


def test_a_candidate_comes_before_its_release() -> None:
    first, second = parse_version("1.3.0rc29"), parse_version("1.3.0")
    assert first is not None and second is not None and first < second


def test_every_triton_image_holds_one_release() -> None:
    tags = [tag for release in releases() for tag in release.images]
    assert len(tags) == len(set(tags))
    months = [f"{year}.{month:02}" for year in (25, 26) for month in range(1, 13)]
    assert sorted(tags) == months[: months.index("26.07") + 1]


def test_the_engine_flow_and_the_sinks_end_where_they_ended() -> None:
    assert [r.version for r in releases() if r.sinks] == [r.version for r in releases() if r.order < (1, 0, 0)]
    assert all(r.engine_flow for r in releases() if r.order <= (1, 2, 1, 10_000, 0))
    assert not any(r.engine_flow for r in releases() if r.order > (1, 2, 1, 10_000, 0))


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_a_release_with_engines_says_what_its_engines_are_for(release: Release) -> None:
    assert release.tensorrt and release.cuda and release.images and release.triton and release.container


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_defaults_are_among_the_choices(release: Release) -> None:
    assert release.build is not None
    for flag in (*release.build.flags.values(), *release.build.plugins.values()):
        assert flag.default is None or not flag.choices or flag.default in flag.choices, flag


@pytest.mark.parametrize("release", WITH_ENGINES, ids=lambda r: r.version)
def test_no_two_options_share_a_name(release: Release) -> None:
    assert release.build is not None
    flags = (*release.build.flags.values(), *release.build.plugins.values())
    names = list(itertools.chain.from_iterable((flag.name, *flag.aliases) for flag in flags))
    assert len(names) == len(set(names))
    assert not release.build.hidden_plugins.keys() & release.build.plugins.keys()


def test_the_defaults_that_moved_have_moved() -> None:
    old, new = find_release("0.17.0"), find_release("0.19.0")
    assert old is not None and old.build and new is not None and new.build
    for name, before, after in (
        ("tokens_per_block", 64, 32),
        ("use_paged_context_fmha", "disable", "enable"),
        ("use_fp8_context_fmha", "disable", "enable"),
    ):
        assert (old.build.plugins[name].default, new.build.plugins[name].default) == (before, after)


def test_auto_parallel_left_with_1_1() -> None:
    has = {r.version: "auto_parallel" in r.build.flags for r in WITH_ENGINES if r.build}
    assert has["1.0.3"] and not has["1.1.0"]
    assert all(r.build.auto_parallel == ("auto_parallel" in r.build.flags) for r in WITH_ENGINES if r.build)


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1"])
def test_the_decoding_type_has_no_underscore_up_to_1_2(version: str) -> None:
    release = find_release(version)
    assert release is not None and release.llm_api is not None
    assert (release.llm_api.decoding_type, release.llm_api.draft_key) == ("DraftTarget", "speculative_model_dir")
    assert not release.overlap_with_draft


@pytest.mark.parametrize("version", ["1.3.0rc8", "1.3.0rc29", "1.4.0rc1"])
def test_the_decoding_type_has_an_underscore_from_1_3_on(version: str) -> None:
    release = find_release(version)
    assert release is not None and release.llm_api is not None
    assert (release.llm_api.decoding_type, release.llm_api.draft_key) == ("Draft_Target", "speculative_model")
    assert release.overlap_with_draft


def test_every_file_names_its_sources() -> None:
    assert all(values["sources"] for values in read_releases())


def test_the_spellings_are_among_the_keys() -> None:
    for release in releases():
        if release.llm_api:
            assert {release.llm_api.draft_key, "decoding_type", "max_draft_len"} <= release.llm_api.speculative_keys
            assert {"enable_block_reuse", "dtype", "free_gpu_memory_fraction"} <= release.llm_api.kv_cache_keys
