"""Loading: one model in memory however many ranks it comes from, and the scales of a quantised cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import tiny_checkpoint
from trtkit.conversion.convert import convert_checkpoint
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.kv_cache.formats import Scale
from trtkit.reference.model.config import read_config
from trtkit.reference.model.load import WeightLoader

PROBE = """
import sys, threading
from pathlib import Path
import torch
from trtkit.reference.model.config import read_config
from trtkit.reference.model.load import WeightLoader

def anonymous_bytes():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, anonymous_bytes())

torch.nn.functional.linear(torch.ones(4, 4), torch.ones(4, 4))
folder, done = Path(sys.argv[1]), threading.Event()
start = peak = anonymous_bytes()
watcher = threading.Thread(target=watch)
watcher.start()
weights = WeightLoader(folder, read_config(folder), torch.device("cpu")).load(64)
done.set()
watcher.join()
print(peak - start)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts memory as Linux does")
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_ranks_are_read_layer_by_layer(family: str, tmp_path: Path) -> None:
    """Anonymous memory: what is mapped from the files can be taken back at any moment.

    The C library is told to give freed pieces of these small matrices back at once, as it does with large ones.
    """
    sizes = {"hidden_size": 384, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 8}
    source = tiny_checkpoint(tmp_path / "source", family, **sizes)
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out", ConversionOptions(dtype="float32", tensor_parallel=2))
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-P", "-c", PROBE, str(tmp_path / "out")]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=env).stdout)
    model = (source / "model.safetensors").stat().st_size
    # Parts of one layer come on top while they are joined and packed.
    assert 0.8 * model < peak < 1.25 * model


def test_the_scales_of_a_quantised_cache_come_with_their_layers(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", "qwen2")
    maxima = {str(layer): {"k": 4.48 * (layer + 1), "v": 2.24} for layer in range(3)}
    document = {"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": maxima}
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    options = ConversionOptions(
        dtype="float32", pipeline_parallel=2, kv_cache_dtype="fp8", calibration=tmp_path / "calibration.json"
    )
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out", options)
    scales = WeightLoader(tmp_path / "out", read_config(tmp_path / "out"), torch.device("cpu")).load(64).kv_scales
    assert scales == tuple(Scale(pytest.approx(0.01 * (layer + 1)), pytest.approx(0.005)) for layer in range(3))


def test_an_int4_cache_is_what_conversion_json_says(tmp_path: Path) -> None:
    """TensorRT-LLM's config.json has no word for it."""
    source = tiny_checkpoint(tmp_path / "source", "qwen2")
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out", ConversionOptions(dtype="float32", kv_cache_dtype="int4"))
    assert read_config(tmp_path / "out").quantization.kv_cache_algorithm == "INT4"


def test_a_cache_without_scales_says_so(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path / "source", "qwen2")
    (tmp_path / "out").mkdir()
    convert_checkpoint(source, tmp_path / "out", ConversionOptions(dtype="float32"))
    weights = WeightLoader(tmp_path / "out", read_config(tmp_path / "out"), torch.device("cpu")).load(64)
    assert weights.kv_scales == (None, None, None)
