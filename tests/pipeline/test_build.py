"""The build: complete, resumable, skipped where nothing changed, and whole or absent after any interruption."""

import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import tiny_checkpoint
from trtkit.builds import open_build
from trtkit.checking.folder_checks import check_build
from trtkit.config.load import load_config
from trtkit.errors import BuildError, CheckpointError, InputError, MissingToolError
from trtkit.pipeline import rendering
from trtkit.pipeline.dry_run import dry_run
from trtkit.pipeline.run import BuildOptions, BuildReport, build
from trtkit.pipeline.stages import NOTICED_CODES
from trtkit.progress import Progress

STAGES = ["check", "convert target", "convert draft", "engine target", "engine draft", "tokenizer", "repository"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tiny_checkpoint(folder / "target", tokenizer=True)
    tiny_checkpoint(folder / "draft", tokenizer=True, num_hidden_layers=1)
    return folder


@pytest.fixture
def config_file(pair: Path, tmp_path: Path) -> Path:
    document = {
        "name": "tiny",
        "backend": "reference",
        "target": {"checkpoint": str(pair / "target"), "dtype": "float32"},
        "draft": {"checkpoint": str(pair / "draft"), "dtype": "float32"},
        "speculation": {"kind": "draft_target", "max_draft_len": 2},
        "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 32},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def run(config_file: Path, *overrides: str, **options: object) -> BuildReport:
    out = config_file.parent / "build"
    choices = BuildOptions(cache=config_file.parent / "cache", where="tiny.yaml", out=out, **options)  # type: ignore[arg-type]
    return build(load_config(config_file, overrides), choices)


def trtkit_check(out: Path) -> list[str]:
    return [finding.code for finding in check_build(out) if finding.severity == "error"]


def skipped(report: BuildReport) -> list[str]:
    return [stage.stage for stage in report.stages if stage.skipped]


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file that is not about time."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in ("manifest.json", "conversion.json")]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_build_runs_every_stage_and_writes_the_manifest_last(config_file: Path) -> None:
    report = run(config_file)
    assert [stage.stage for stage in report.stages] == STAGES
    opened = open_build(report.out)
    assert opened.config.max_draft_len == 2
    assert opened.manifest["inputs"]["target"]["files"]["model.safetensors"]["sha256"]
    limits = opened.manifest["limits"]
    assert (limits["target"]["max_seq_len"], limits["target"]["max_draft_len"]) == (96, 2)
    assert (limits["target"]["built_max_seq_len"], limits["draft"]["built_max_seq_len"]) == (98, 96)


def test_a_second_build_skips_everything(config_file: Path) -> None:
    first = contents(run(config_file).out)
    again = run(config_file)
    assert skipped(again) == STAGES[1:]
    assert contents(again.out) == first


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("draft.dtype=float16", ["convert target", "engine target", "tokenizer"]),
        ("limits.max_output_len=16", ["convert target", "convert draft", "tokenizer"]),
        ("serving.streaming=false", [s for s in STAGES[1:] if s != "repository"]),
        ("verification.max_new_tokens=3", STAGES[1:]),
    ],
)
def test_a_change_reruns_what_depends_on_it_and_nothing_else(config_file: Path, override: str, kept: list[str]) -> None:
    run(config_file)
    assert skipped(run(config_file, override)) == kept


def test_new_weights_are_noticed_by_content(config_file: Path, pair: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(pair / "target", tmp_path / "other"))
    run(config_file)
    same = run(config_file, f"target.checkpoint={moved}")
    assert "convert target" in skipped(same)
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    assert "convert target" not in skipped(run(config_file, f"target.checkpoint={moved}"))


def test_new_weights_with_the_old_size_and_time_are_noticed(config_file: Path, pair: Path, tmp_path: Path) -> None:
    """As by a copy that keeps times: only the inode tells that something happened."""
    moved = Path(shutil.copytree(pair / "target", tmp_path / "other"))
    run(config_file, f"target.checkpoint={moved}")
    file = moved / "model.safetensors"
    times, weights = file.stat(), bytearray(file.read_bytes())
    weights[-1] ^= 1
    file.write_bytes(weights)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "convert target" not in skipped(run(config_file, f"target.checkpoint={moved}"))


def test_a_new_chat_template_is_copied_and_no_new_model(config_file: Path, pair: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(pair / "target", tmp_path / "other"))
    run(config_file, f"target.checkpoint={moved}")
    (moved / "chat_template.jinja").write_text("{{ messages[0].content }}")
    report = run(config_file, f"target.checkpoint={moved}")
    assert {"convert target", "engine target"} <= set(skipped(report))
    assert (report.out / "tokenizer" / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    assert trtkit_check(report.out) == []


def test_a_repository_that_would_be_rendered_otherwise_today_is_rendered_again(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config_file)
    original = rendering.render_repository

    def newer(*arguments: Any, **keywords: Any) -> dict[str, str]:
        return original(*arguments, **keywords) | {"README": "of a newer renderer"}

    monkeypatch.setattr(rendering, "render_repository", newer)
    report = run(config_file)
    assert skipped(report) == [stage for stage in STAGES[1:] if stage != "repository"]
    assert (report.out / "model_repository" / "README").is_file()


def test_an_ignored_finding_is_recorded(config_file: Path) -> None:
    kept = open_build(run(config_file).out).manifest
    ignored = open_build(run(config_file, ignore=("SPEC-DRAFT-SIZE",)).out).manifest
    assert "SPEC-DRAFT-SIZE" in [finding["code"] for finding in kept["findings"]]
    assert "SPEC-DRAFT-SIZE" not in [finding["code"] for finding in ignored["findings"]]
    assert ignored["ignored"] == ["SPEC-DRAFT-SIZE"]


def test_texts_that_are_not_there_end_a_build_before_it_begins_and_are_not_asked_for_afterwards(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"there is no file texts\.jsonl") as caught:
        run(config_file, "calibration.prompts=texts.jsonl")
    assert caught.value.code == "FILE-ABSENT"
    monkeypatch.chdir(config_file.parent)
    Path("prompts.txt").write_text("Once upon a time")
    out = run(config_file, "verification.prompts=prompts.txt").out
    monkeypatch.chdir("/")
    assert trtkit_check(out) == []


def test_a_code_that_no_finding_has_is_not_ignored_silently(config_file: Path) -> None:
    with pytest.raises(InputError, match="no finding has this code") as caught:
        run(config_file, ignore=("SPEC-DRAFTSIZE",))
    assert "did you mean SPEC-DRAFT-SIZE?" in caught.value.fix


@pytest.mark.parametrize("page", ["calibration.md", "conversion.md"])
def test_every_warning_and_note_of_a_stage_can_be_ignored(page: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    said = [line for line in text.splitlines() if re.search(r"[Ww]arnings? and notes|a warning of|warnings: ", line)]
    assert said, "the page says which codes are warnings"
    codes = {code for line in said for code in re.findall(r"(?:CALIB|CONV|CKPT)-[A-Z-]+", line)}
    assert codes and codes <= NOTICED_CODES


def test_two_builds_never_mix_their_stages_in_one_directory(config_file: Path) -> None:
    """The second begins while the first is between two stages, and would replace what the first reads next."""
    refused: list[str | None] = []

    def between(event: Progress) -> None:
        if event.stage == "engine target" and event.done == 0:
            with pytest.raises(BuildError) as caught:
                run(config_file, "target.dtype=float16")
            refused.append(caught.value.code)

    choices = BuildOptions(cache=config_file.parent / "cache", where="t", out=config_file.parent / "build")
    build(load_config(config_file), choices, between)
    assert refused == ["LOCKED"]
    assert "convert target" not in skipped(run(config_file, "target.dtype=float16")), "afterwards it may"


def test_a_damaged_stage_is_made_again(config_file: Path) -> None:
    out = run(config_file).out
    (out / "checkpoints" / "draft" / "rank0.safetensors").unlink()
    report = run(config_file)
    assert "convert draft" not in skipped(report) and "convert target" in skipped(report)


FOREIGN = ("checkpoints/target/notes.txt", "tokenizer/tokenizer.json", "model_repository/mine/config.pbtxt")


@pytest.mark.parametrize("name", [*FOREIGN, "manifest.json", "launch/serve.sh", "engines/draft"])
def test_a_build_takes_nothing_away_that_no_build_wrote(config_file: Path, name: str) -> None:
    """--out names a folder in which somebody keeps files of their own."""
    mine = config_file.parent / "build" / name
    mine.parent.mkdir(parents=True)
    mine.write_text('{"precious": 1}')
    options = BuildOptions(cache=config_file.parent, where="t", out=config_file.parent / "build")
    for attempt in (lambda: run(config_file), lambda: dry_run(load_config(config_file), options)):
        with pytest.raises(InputError, match="which no build wrote") as caught:
            attempt()
        assert caught.value.code == "OUT-EXISTS" and mine.name in caught.value.cause
    assert [path for path in (config_file.parent / "build").rglob("*") if path.is_file()] == [mine]


def test_what_others_put_beside_a_finished_stage_stays_until_the_stage_would_be_replaced(config_file: Path) -> None:
    out = run(config_file).out
    for name in FOREIGN[::2]:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    assert set(STAGES[1:]) == set(skipped(run(config_file))), "nothing of its own has changed"
    with pytest.raises(InputError, match=r"mine/config\.pbtxt"):
        run(config_file, "limits.max_batch_size=3", only="repository")
    assert (out / FOREIGN[2]).read_text() == "mine"


def test_what_a_server_leaves_in_the_repository_is_nobody_s(config_file: Path) -> None:
    out = run(config_file).out
    for name in ("tensorrt_llm/1/model.py", "tensorrt_llm_bls/1/__pycache__/model.cpython-312.pyc"):
        (out / "model_repository" / name).parent.mkdir(exist_ok=True)
        (out / "model_repository" / name).touch()
    report = run(config_file, "limits.max_batch_size=3")
    assert "repository" not in skipped(report)
    assert not list(report.out.rglob("*.pyc"))


def test_a_build_directory_that_is_a_loop_of_links_is_one_clear_message(config_file: Path) -> None:
    out = config_file.parent / "build"
    out.symlink_to("loop")
    (config_file.parent / "loop").symlink_to("build")
    with pytest.raises(BuildError, match="links lead to each other"):
        run(config_file)


def test_the_command_that_comes_next_can_be_copied(config_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "it's here"
    report = build(load_config(config_file), BuildOptions(cache=tmp_path, where="t", out=out))
    assert shlex.split(report.next_command) == ["trtkit", "serve", str(out)]


def test_a_dry_run_names_exactly_the_files_that_a_build_writes(config_file: Path) -> None:
    options = BuildOptions(cache=config_file.parent, where="t", out=config_file.parent / "build")
    planned = dry_run(load_config(config_file), options)
    assert not (config_file.parent / "build").exists()
    run(config_file)
    for stage in planned:
        written = {p.relative_to(stage.out).as_posix() for p in stage.out.rglob("*") if p.is_file()}
        assert written - {".trtkit-stage.json"} == set(stage.files), stage.stage
    assert all(stage.skipped for stage in dry_run(load_config(config_file), options))


def test_only_runs_one_stage_and_finishes_no_build(config_file: Path) -> None:
    report = run(config_file, only="convert")
    assert [stage.stage for stage in report.stages] == ["check", "convert target", "convert draft"]
    assert report.manifest is None
    with pytest.raises(InputError, match="not a finished build"):
        open_build(report.out)


@pytest.mark.parametrize(("stage", "lacks"), [("engines", "converted"), ("repository", "built")])
def test_a_stage_alone_says_which_one_comes_before_it(config_file: Path, stage: str, lacks: str) -> None:
    with pytest.raises(BuildError, match=f"is not {lacks} yet") as caught:
        run(config_file, only=stage)
    assert caught.value.code == "STAGE-ORDER"


PROGRAM = """
import os, signal, sys
from pathlib import Path
from trtkit.config.load import load_config
from trtkit.pipeline.run import BuildOptions, build
config, out, moment = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seen = 0
def kill(event):
    global seen
    seen += 1
    if seen == moment:
        os.kill(os.getpid(), signal.SIGKILL)
build(load_config(config), BuildOptions(cache=out.parent, where="t", out=out), kill)
"""


def test_a_build_killed_at_any_moment_ends_with_the_same_files_when_run_again(config_file: Path) -> None:
    events: list[Progress] = []
    whole = config_file.parent / "whole"
    options = BuildOptions(cache=config_file.parent, where="t", out=whole)
    build(load_config(config_file), options, events.append)
    expected = contents(whole)
    for moment in range(1, len(events) + 1, max(1, len(events) // 10)):
        out = config_file.parent / f"killed-{moment}" / "whole"
        command = [sys.executable, "-P", "-c", PROGRAM, str(config_file), str(out), str(moment)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        build(load_config(config_file), BuildOptions(cache=config_file.parent, where="t", out=out))
        assert contents(out) == expected, f"killed at event {moment} of {len(events)}"


def test_a_disk_that_is_full_is_one_message_and_leaves_no_half_stage(config_file: Path) -> None:
    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    out = config_file.parent / "build"
    result = subprocess.run(
        [sys.executable, "-P", "-m", "trtkit", "build", str(config_file), "--out", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=small_files_only,
        env={**os.environ, "TRTKIT_CACHE": str(config_file.parent / "cache")},
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert "DISK" in result.stderr and "Fix: free space" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (out / "checkpoints" / "target").exists() and not (out / "manifest.json").exists()


def break_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def other_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["BertModel"], "model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (break_config, "config.json"),
        (only_pickle, "pickle"),
        (other_architecture, "BertModel"),
        (no_tokenizer, "tokenizer"),
    ],
)
def test_a_checkpoint_that_cannot_be_built_is_refused_before_anything_is_written(
    config_file: Path, pair: Path, tmp_path: Path, damage: object, says: str
) -> None:
    broken = Path(shutil.copytree(pair / "target", tmp_path / "broken"))
    damage(broken)  # type: ignore[operator]
    with pytest.raises(InputError) as caught:
        run(config_file, f"target.checkpoint={broken}")
    assert says.lower() in str(caught.value).lower()
    assert caught.value.exit_code == 2
    assert not (config_file.parent / "build").exists()


def test_a_checkpoint_that_is_nowhere_is_refused(config_file: Path) -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        run(config_file, "target.checkpoint=/nowhere/at/all")


def test_a_demo_checkpoint_that_is_not_prepared_names_the_command(config_file: Path) -> None:
    with pytest.raises(CheckpointError, match="trtkit demo"):
        run(config_file, "target.checkpoint=trtkit/smollm2-draft")


def test_an_engine_without_a_gpu_says_so_before_converting_anything(config_file: Path) -> None:
    with pytest.raises(MissingToolError, match="this machine has none") as caught:
        run(config_file, "backend=engine", "target.dtype=bfloat16", "draft.dtype=bfloat16")
    assert (caught.value.exit_code, caught.value.code) == (3, "GPU-MISSING")
    assert not (config_file.parent / "build" / "checkpoints" / "target").exists()
