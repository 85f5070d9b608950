"""Calibrates a synthetic Llama of 13 GB and prints the peak memory and the time; the limit is 3 GB. Removes its files.

    python -P tests/bench/bench_calibration.py SCRATCH        # needs 15 GB of disk there

Weights are random with the spread of a fresh model, so that activations neither vanish nor overflow.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LIMIT_BYTES = 3_000_000_000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
NUM_SAMPLES, SAMPLE_TOKENS = 8, 64


def write_checkpoint(folder: Path) -> int:
    """One file per layer and one for the rest; returns the bytes written."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    block = bfloat16(np.random.RandomState(0).standard_normal(1 << 22).astype(np.float32) * 0.02)
    weight_map: dict[str, str] = {}
    for number in range(CONFIG["num_hidden_layers"] + 1):
        shapes = layer_shapes(number) if number < CONFIG["num_hidden_layers"] else outer_shapes()
        name = f"model-{number:05}.safetensors"
        write_shard(folder / name, shapes, block)
        weight_map |= dict.fromkeys(shapes, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sum(path.stat().st_size for path in folder.iterdir())


def layer_shapes(number: int) -> dict[str, tuple[int, ...]]:
    hidden, inter = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    prefix = f"model.layers.{number}."
    attention = {f"{prefix}self_attn.{n}_proj.weight": (hidden, hidden) for n in "qkvo"}
    mlp = {f"{prefix}mlp.{n}_proj.weight": (inter, hidden) for n in ("gate", "up")}
    norms = {f"{prefix}{n}.weight": (hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
    return {**attention, **mlp, f"{prefix}mlp.down_proj.weight": (hidden, inter), **norms}


def outer_shapes() -> dict[str, tuple[int, ...]]:
    hidden, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    return {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], block: np.ndarray) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            if len(shape) == 1:
                file.write(bfloat16(np.ones(shape, np.float32)).tobytes())
                continue
            left = int(np.prod(shape))
            while left:
                count = min(left, block.size)
                file.write(block[:count].tobytes())
                left -= count


def bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_samples(path: Path) -> None:
    random = np.random.RandomState(1)
    rows = [random.randint(3, CONFIG["vocab_size"], SAMPLE_TOKENS).tolist() for _ in range(NUM_SAMPLES)]
    path.write_text("".join(json.dumps({"token_ids": row}) + "\n" for row in rows))


def main() -> int:
    scratch = Path(sys.argv[1])
    try:
        size = write_checkpoint(scratch / "hf")
        write_samples(scratch / "samples.jsonl")
        config = scratch / "config.yaml"
        config.write_text(
            f"name: synthetic\ntarget: {{checkpoint: {scratch / 'hf'}}}\n"
            f"calibration: {{prompts: {scratch / 'samples.jsonl'}}}\n"
        )
        started = time.perf_counter()
        command = [
            sys.executable,
            "-P",
            "-m",
            "trtkit",
            "calibrate",
            str(config),
            "--out",
            str(scratch / "out"),
            "--json",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ))
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    result = {"checkpoint_bytes": size, "peak_bytes": peak, "limit_bytes": LIMIT_BYTES, "seconds": round(seconds, 1)}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if peak < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
