"""Conversion against `cp` of the same bytes, and against nvidia-modelopt's export, on a synthetic Llama.

    export PYTHONPATH=tests
    python tests/bench/bench_conversion.py FOLDER                       # 7B (13.5 GB; FOLDER needs 30 GB), 3 runs
    python tests/bench/bench_conversion.py FOLDER --size 1b --modelopt  # 1.1B (2.2 GB), with modelopt's export

Every run is a process of its own and ends with its data on the disk (cp is followed by sync of the copy), with the
source in the page cache as far as it fits. Runs of the kinds take turns, so that a busy moment hits all of them, and
each follows an unmeasured copy that is removed again: a virtual machine gives memory that was idle for seconds back to
its host, and whoever writes first pays for getting it again (2 of 3 seconds for 2.2 GB).
FP8 includes the proof that the calibration was measured on these weights, a SHA-256 of all of them.
"seconds" is the median of whole processes, "rate" source bytes per second, "of cp" the rate over cp's, "peak" the
largest resident memory above that of the same interpreter with the same imports.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from trtkit.checkpoints.digest import checkpoint_digest

SIZES: dict[str, dict[str, Any]] = {
    "7b": {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "num_attention_heads": 32},
    "1b": {"hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632, "num_attention_heads": 32},
}
KV_HEADS = {"7b": 32, "1b": 4}
SHARD_BYTES = 5_000_000_000
_POLL_S = 0.01
WITNESS = Path(__file__).resolve().parents[1] / "modelopt_witness.py"
CONVERT = (sys.executable, "-P", "-m", "trtkit", "convert")
IDLE = (sys.executable, "-P", "-c", "import trtkit.cli.convert, trtkit.conversion.convert")
MODELOPT_IDLE = (
    sys.executable,
    "-P",
    "-c",
    "import torch, modelopt.torch.export; from transformers import AutoModelForCausalLM, LlamaForCausalLM",
)


@dataclass(frozen=True)
class Kind:
    """One thing to measure. idle: the command whose memory is the baseline."""

    name: str
    command: tuple[str, ...]
    idle: tuple[str, ...] | None


@dataclass
class Measured:
    """Seconds of every run, and the largest resident memory."""

    seconds: list[float]
    peak_bytes: int = 0


def synthetic(folder: Path, size: str) -> Path:
    """A bfloat16 Llama of realistic shapes: normal values, repeated; and calibration limits for FP8."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny.tiny_config("llama", "bfloat16", **SIZES[size], num_key_value_heads=KV_HEADS[size], vocab_size=32000)
    shapes = dict(tiny.tensor_shapes("llama", config))
    values = np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32) * np.float32(0.02)
    pattern = tiny.encode(values, "bfloat16").tobytes()
    shards: list[list[str]] = [[]]
    held = 0
    for name, shape in shapes.items():
        held += 2 * int(np.prod(shape))
        if held > SHARD_BYTES:
            shards.append([])
            held = 2 * int(np.prod(shape))
        shards[-1].append(name)
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        write_shard(folder / file, {name: shapes[name] for name in names}, pattern)
    total = sum(2 * int(np.prod(shape)) for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    tiny.write_json(folder / "model.safetensors.index.json", index)
    inputs = {name.removesuffix(".weight"): 8.0 for name, shape in shapes.items() if len(shape) == 2}
    tiny.write_json(folder / "config.json", config)
    measured_on = {"digest": checkpoint_digest(folder)}
    calibration = {"schema": "trtkit.calibration/1", "inputs": inputs, "kv_cache": {}, "checkpoint": measured_on}
    tiny.write_json(folder / "calibration.json", calibration)
    return folder


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], pattern: bytes) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        length = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset > 0:
            file.write(pattern[:offset])
            offset -= len(pattern)


def run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process.

    The peak is the program's own, asked for while it runs: what wait4 tells includes this process' memory, which the
    child shares until it becomes another program.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, peak_of(process.pid))
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - started
    if process.returncode:
        message = process.stderr.read().decode() if process.stderr else ""
        raise SystemExit(f"{' '.join(command)} failed: {message[-500:]}")
    return seconds, peak_bytes


def peak_of(pid: int) -> int:
    """Largest resident memory of a running process so far, in bytes; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def kinds(source: Path, out: Path, with_modelopt: bool) -> list[Kind]:
    shards = sorted(str(path) for path in source.glob("*.safetensors"))
    script = 'mkdir "$0" && cp "$@" "$0" && sync "$0"/*'
    convert = (*CONVERT, str(source), str(out))
    listed = [
        Kind("cp and sync", ("bash", "-c", script, str(out), *shards), None),
        Kind("trtkit bf16, tp 1", convert, IDLE),
        Kind("trtkit bf16, tp 4", (*convert, "--tp", "4"), IDLE),
        Kind(
            "trtkit fp8, tp 1",
            (*convert, "--quantization", "fp8", "--calibration", str(source / "calibration.json")),
            IDLE,
        ),
    ]
    if with_modelopt:
        command = (sys.executable, "-P", str(WITNESS), "bfloat16", str(source), str(out), "1")
        listed.append(Kind("modelopt bf16, tp 1", command, MODELOPT_IDLE))
    return listed


def measure(listed: list[Kind], out: Path, runs: int) -> dict[str, Measured]:
    """Let the kinds take turns; the output is removed after each run."""
    measured = {kind.name: Measured([]) for kind in listed}
    for _ in range(runs):
        for kind in listed:
            clear(out)
            run(listed[0].command)
            clear(out)
            subprocess.run(["sync"], check=True)
            seconds, peak_bytes = run(kind.command)
            measured[kind.name].seconds.append(seconds)
            measured[kind.name].peak_bytes = max(measured[kind.name].peak_bytes, peak_bytes)
    clear(out)
    return measured


def clear(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for leftover in out.parent.glob(f".{out.name}.*"):
        leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover)


def table(listed: list[Kind], measured: dict[str, Measured], source_bytes: int) -> str:
    """One row per kind."""
    copied = statistics.median(measured[listed[0].name].seconds)
    lines = ["| what | seconds | rate | of cp | peak |", "|---|---|---|---|---|"]
    for kind in listed:
        seconds = statistics.median(measured[kind.name].seconds)
        baseline = run(kind.idle)[1] if kind.idle else 0
        peak = f"{(measured[kind.name].peak_bytes - baseline) / 1e6:,.0f} MB" if kind.idle else ""
        rate = f"{source_bytes / seconds / 1e9:.2f} GB/s"
        lines.append(f"| {kind.name} | {seconds:.1f} | {rate} | {copied / seconds:.2f} | {peak} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="7b")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--modelopt", action="store_true", help="Measure modelopt's export too.")
    arguments = parser.parse_args()
    source = arguments.folder / arguments.size
    if not (source / "calibration.json").exists():
        synthetic(source, arguments.size)
    source_bytes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    listed = kinds(source, arguments.folder / "out", arguments.modelopt)
    measured = measure(listed, arguments.folder / "out", arguments.runs)
    sys.stdout.write(table(listed, measured, source_bytes))


if __name__ == "__main__":
    main()
