"""What calibrations and conversions noticed, read back from their files: a stage that is up to date says it again."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trtkit.calibration.report import REPORT_NAME
from trtkit.conversion.report import report_of
from trtkit.findings import Finding
from trtkit.pipeline.request import BuildRequest
from trtkit.pipeline.stages import Stage


def stage_findings(stages: Sequence[Stage], request: BuildRequest) -> list[Finding]:
    """The findings of finished stages, and of the calibrations that were there before; each once."""
    groups = {stage.group for stage in stages}
    calibrations = [file.parent for file in request.calibrations.values()] if "convert" in groups else []
    calibrations += [stage.out for stage in stages if stage.group == "calibrate"]
    found = [finding for folder in calibrations for finding in _of_calibration(folder, request.config.kv_cache.dtype)]
    conversions = [report_of(stage.out) for stage in stages if stage.group == "convert"]
    found += [finding for report in conversions if report is not None for finding in report.findings]
    return list(dict.fromkeys(found))


def _of_calibration(folder: Path, kv_dtype: str) -> Iterator[Finding]:
    document = _document(folder / REPORT_NAME)
    for entry in document.get("findings", ()):
        with contextlib.suppress(TypeError):  # of another release
            yield Finding(**entry)
    cache = document.get("kv_cache")
    if kv_dtype != "auto" and isinstance(cache, dict) and cache.get("advice") == "keep":
        yield Finding(
            "CALIB-KEEP",
            "warning",
            str(folder / REPORT_NAME),
            f"the KV cache is to be {kv_dtype}, and {cache.get('reason')}",
            "write kv_cache: {dtype: auto}, or look at the price first: trtkit calibrate --price",
        )


def _document(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none, since what was noticed decides nothing."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
