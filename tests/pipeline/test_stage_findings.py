"""What calibrations and conversions notice is said by every build that uses them, and stands in its manifest."""

import json
from pathlib import Path
from typing import Any

import pytest
from calibrated import random_samples
from tiny import tiny_checkpoint
from trtkit.config.load import parse_config
from trtkit.pipeline.run import BuildOptions, BuildReport, build


@pytest.fixture
def make(tmp_path: Path) -> Any:
    tiny_checkpoint(tmp_path / "target", "mistral", tokenizer=True, sliding_window=32)
    rows = [{"token_ids": sample.token_ids} for sample in random_samples({f"t{n}": 48 for n in range(4)})]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def made(*ignore: str, **sections: Any) -> BuildReport:
        document = {
            "name": "tiny",
            "backend": "reference",
            "target": {"checkpoint": str(tmp_path / "target")},
            "limits": {"max_batch_size": 2, "max_input_len": 16, "max_output_len": 16},
            "calibration": {"samples": 4, "max_len": 48, "prompts": str(tmp_path / "texts.jsonl")},
            **sections,
        }
        options = BuildOptions(tmp_path / "cache", "tiny.yaml", tmp_path / "build", ignore=("REFERENCE-LIMIT", *ignore))
        return build(parse_config(document, where="tiny.yaml"), options)

    return made


def codes(report: BuildReport) -> list[str]:
    """Of the build, which must be those of its manifest."""
    assert report.manifest is not None
    found = [finding.code for finding in report.findings]
    assert [finding["code"] for finding in json.loads(report.manifest.read_text())["findings"]] == found
    return found


def test_a_stage_that_is_up_to_date_says_again_what_it_noticed(make: Any) -> None:
    first = codes(make(kv_cache={"dtype": "int8"}))
    assert {"CALIB-FEW", "CONV-WINDOW"} <= set(first)
    assert codes(make(kv_cache={"dtype": "int8"})) == first


def test_a_finding_can_be_ignored_whoever_noticed_it(make: Any) -> None:
    assert "CALIB-FEW" not in codes(make("CALIB-FEW", kv_cache={"dtype": "int8"}))


def test_a_calibration_made_before_is_heard(make: Any, tmp_path: Path) -> None:
    make(kv_cache={"dtype": "int8"})
    folder = tmp_path / "build" / "calibration" / "target"
    folder.parent.mkdir()
    (tmp_path / "build" / "scales" / "target").rename(folder)
    advice = {"kv_cache": {"advice": "keep", "reason": "keys are wild"}}
    report = json.loads((folder / "report.json").read_text()) | advice
    (folder / "report.json").write_text(json.dumps(report))
    found = make(kv_cache={"dtype": "int8"})
    assert {"CALIB-FEW", "CALIB-KEEP"} <= set(codes(found))
    [keep] = [finding for finding in found.findings if finding.code == "CALIB-KEEP"]
    assert keep.cause == "the KV cache is to be int8, and keys are wild"
    assert "CALIB-KEEP" in codes(make(kv_cache={"dtype": "int4"})), "INT4 is no gentler"
    assert "CALIB-KEEP" not in codes(make()), "a cache in 16 bits is what the advice asks for"


@pytest.mark.parametrize("text", ["", "[]", '{"findings": [{"code": "X"}], "kv_cache": 3}'])
def test_a_damaged_report_stops_no_build(make: Any, tmp_path: Path, text: str) -> None:
    make(kv_cache={"dtype": "int8"})
    folder = tmp_path / "build" / "calibration" / "target"
    folder.parent.mkdir()
    (tmp_path / "build" / "scales" / "target").rename(folder)
    (folder / "report.json").write_text(text)
    assert "CALIB-FEW" not in codes(make(kv_cache={"dtype": "int8"}))
