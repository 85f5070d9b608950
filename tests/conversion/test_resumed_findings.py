"""What was found in tensors before an interruption is reported by the run that goes on, which does not read them."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.progress import Progress

UP = "model.layers.0.mlp.up_proj.weight"
OPTIONS = ConversionOptions(dtype="float16", tensor_parallel=2, pipeline_parallel=3)


def checkpoint(folder: Path, value: float) -> Path:
    """One value of the first layer, in the rows of the first rank, is `value`."""
    tiny.tiny_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: tiny.tiny_tensor(name, shape) for name, shape in tiny.tensor_shapes("llama", config)}
    tensors[UP][3, 3] = value
    tiny.write_weights(folder, tensors, "float32")
    return folder


def interrupt(source: Path, out: Path) -> Path:
    """Convert until the second stage begins; returns the scratch directory."""
    scratch = out.with_name(f".{out.name}.partial")

    def stop(_: Progress) -> None:
        if (scratch / "rank1.safetensors").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_to(source, out, OPTIONS, stop)
    return scratch


@pytest.mark.parametrize(("value", "code"), [(np.nan, "CKPT-NAN"), (1e6, "CONV-OVERFLOW")])
def test_a_warning_about_a_finished_rank_survives_an_interruption(value: float, code: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", value)
    whole = convert_to(source, tmp_path / "whole", OPTIONS)
    interrupt(source, tmp_path / "out")
    report = convert_to(source, tmp_path / "out", OPTIONS)
    assert [file.skipped for file in report.files] == [True, True, False, False, False, False]
    assert [(finding.code, finding.where) for finding in report.findings] == [(code, f"{source}:{UP}")]
    assert report.findings == whole.findings
    manifests = [(tmp_path / name / "conversion.json").read_text() for name in ("out", "whole")]
    assert manifests[0] == manifests[1]


def test_a_rank_that_is_written_again_does_not_hide_what_the_kept_one_holds(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", np.nan)
    scratch = interrupt(source, tmp_path / "out")
    (scratch / ".rank1.done.json").unlink()
    report = convert_to(source, tmp_path / "out", OPTIONS)
    assert [file.skipped for file in report.files][:2] == [True, False]
    assert [finding.code for finding in report.findings] == ["CKPT-NAN"]


@pytest.mark.parametrize("findings", [None, {}, {"non_finite": ["x"], "overflowed": []}, {"non_finite": 1}])
def test_a_rank_whose_record_does_not_say_what_was_found_is_written_again(findings: object, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", np.nan)
    scratch = interrupt(source, tmp_path / "out")
    record = json.loads((scratch / ".rank0.done.json").read_text())
    (scratch / ".rank0.done.json").write_text(json.dumps(record | {"findings": findings}))
    report = convert_to(source, tmp_path / "out", OPTIONS)
    assert [file.skipped for file in report.files][:2] == [False, True]
    assert [finding.code for finding in report.findings] == ["CKPT-NAN"]
