"""Runs the real aiperf on a served build, for tests and measurements, and reads what it left. Knows no figures of ours.

aiperf has no endpoint type for Triton's generate_stream: its `template` type sends what a template makes of a prompt,
and reads one field of each response.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIELDS = '"text_input": {{ text|tojson }}, "max_tokens": {{ max_tokens }}, "stream": true'
TEMPLATES = {"tensorrt_llm_bls": f'{{{_FIELDS}, "num_draft_tokens": 0}}', "ensemble": f"{{{_FIELDS}}}"}
"""Request bodies by model, with speculation off; the ensemble has none."""


@dataclass(frozen=True)
class AiperfRun:
    """What is sent where. schedule takes a file of kind mooncake_trace with its own times; else requests go one after
    another, `concurrency` at once. num_warmups more of them go before, and are not counted."""

    url: str
    model: str
    tokenizer: Path
    input_file: Path
    num_requests: int
    concurrency: int = 1
    num_warmups: int = 0
    schedule: bool = False

    def command(self, program: str, folder: Path) -> list[str]:
        """The command line; folder holds the template."""
        kind = "mooncake_trace" if self.schedule else "single_turn"
        pace = ["--fixed-schedule"] if self.schedule else ["--concurrency", str(self.concurrency)]
        pace += ["--warmup-request-count", str(self.num_warmups)] if self.num_warmups else []
        return [
            *(program, "profile", "-m", self.model, "--endpoint-type", "template", "--streaming", "--url", self.url),
            *("--custom-endpoint", f"/v2/models/{self.model}/generate_stream", "--tokenizer", str(self.tokenizer)),
            *("--extra-inputs", f"payload_template:{folder / 'body.jinja'}"),
            *("--extra-inputs", "response_field:text_output"),
            *("--input-file", str(self.input_file), "--custom-dataset-type", kind),
            *("--dataset-sampling-strategy", "sequential", "--request-count", str(self.num_requests), *pace),
            *("--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--ui", "none"),
            *("--export-level", "raw", "--output-artifact-dir", str(folder / "artifacts")),
        ]


@dataclass(frozen=True)
class AiperfResult:
    """The summary (name -> {"avg", "unit", ...}), what was sent, request by request in the order of sending, and the
    file of all prompts, which aiperf leaves unless a trace has its own times."""

    summary: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    inputs: Path

    @property
    def prompts(self) -> list[tuple[str, int]]:
        """Text and longest answer of each request."""
        return [(each["payload"]["text_input"], each["payload"]["max_tokens"]) for each in self.requests]

    @property
    def times_s(self) -> list[float]:
        """When each request was sent, in seconds from the first."""
        starts = [each["metadata"]["request_start_ns"] for each in self.requests]
        return [(start - starts[0]) / 1e9 for start in starts]


def run_aiperf(program: str, run: AiperfRun, folder: Path) -> AiperfResult:
    """Run it in `folder`, which keeps the artifacts. Raises AssertionError with its last words when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "body.jinja").write_text(TEMPLATES[run.model], encoding="utf-8")
    done = subprocess.run(run.command(program, folder), capture_output=True, text=True, check=False)
    summary = folder / "artifacts" / "profile_export_aiperf.json"
    assert done.returncode == 0 and summary.is_file(), f"aiperf failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    document = json.loads(summary.read_text(encoding="utf-8"))
    assert not document["error_summary"], document["error_summary"]
    lines = (folder / "artifacts" / "profile_export_raw.jsonl").read_text(encoding="utf-8").split("\n")
    sent = [json.loads(line) for line in lines if line]
    counted = [each for each in sent if each["metadata"]["benchmark_phase"] == "profiling"]
    counted.sort(key=lambda each: int(each["metadata"]["request_start_ns"]))
    return AiperfResult(document, counted, folder / "artifacts" / "inputs.json")
