"""What each KV cache of the reference engine costs in perplexity: formats on whole texts, windows on one long stream.

    python tests/bench/bench_kv_cache.py                       # bfloat16, SmolLM2 as `trtkit demo` prepared it
    python tests/bench/bench_kv_cache.py --stream-tokens 4096 --plot docs/kv_cache.svg

The text is the reference part of Python's own documentation, which every CPython brings along. The INT8 and FP8 scales
are the maxima of the first part of it, converted with the checkpoint; perplexities are of the rest. "recomputed" is the
window without a cache: at every STRIDE-th token its last tokens are computed anew from position 0. The other two are
measured at the same tokens. NLL in nats.
"""

import argparse
import json
import math
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from trtkit.cli.environment import cache_directory
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.reference.assembly import LoneSequence, Sizes, assemble
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.model.config import read_config
from trtkit.reference.model.load import WeightLoader

TARGET = "HuggingFaceTB--SmolLM2-135M-Instruct"
TEXT_TOKENS, STRIDE = 1024, 32
OWN = CacheOptions("float", reuse="off")


class Model:
    """A converted checkpoint, fed without an engine around it."""

    def __init__(self, folder: Path) -> None:
        self.config = read_config(folder)
        self.weights = WeightLoader(folder, self.config, torch.device("cpu")).load(TEXT_TOKENS)

    def sequence(self, cache: CacheOptions) -> LoneSequence:
        return LoneSequence(assemble(self.config, self.weights, cache, Sizes(1, TEXT_TOKENS, TEXT_TOKENS)))

    def nats(self, token_ids: Sequence[int], cache: CacheOptions, piece: int) -> torch.Tensor:
        """-log p of every token but the first, given those before it as the cache keeps them."""
        sequence, parts = self.sequence(cache), []
        for start in range(0, len(token_ids) - 1, piece):
            inputs = token_ids[start : min(start + piece, len(token_ids) - 1)]
            targets = torch.tensor(token_ids[start + 1 : start + 1 + len(inputs)])
            parts.append(torch.nn.functional.cross_entropy(sequence.feed(inputs), targets, reduction="none"))
        return torch.cat(parts)

    def maxima(self, texts: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
        """The largest key and value of every layer over some texts."""
        assembly = assemble(self.config, self.weights, OWN, Sizes(1, TEXT_TOKENS, TEXT_TOKENS))
        largest = torch.zeros(self.config.num_layers, 2)
        for text in texts:
            LoneSequence(assembly).feed(text)
            for layer in range(self.config.num_layers):
                held = assembly.storage.read(layer, range(len(text)))
                largest[layer] = torch.maximum(largest[layer], torch.tensor([float(part.abs().max()) for part in held]))
            assembly = assemble(self.config, self.weights, OWN, Sizes(1, TEXT_TOKENS, TEXT_TOKENS))
        return {str(layer): {"k": float(row[0]), "v": float(row[1])} for layer, row in enumerate(largest)}


@dataclass(frozen=True)
class Figure:
    """One line of a table."""

    name: str
    bytes_per_token: float
    perplexity: float


def text_ids(checkpoint: Path) -> list[int]:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids


def converted(checkpoint: Path, scratch: Path, kv_dtype: str, calibration: Path | None = None) -> Path:
    options = ConversionOptions(dtype="bfloat16", kv_cache_dtype=kv_dtype, calibration=calibration)  # type: ignore[arg-type]
    convert_to(checkpoint, scratch / kv_dtype, options)
    return scratch / kv_dtype


def measure_formats(checkpoint: Path, ids: list[int], num_texts: int, scratch: Path) -> list[Figure]:
    texts = [ids[start : start + TEXT_TOKENS] for start in range(0, (num_texts + 4) * TEXT_TOKENS, TEXT_TOKENS)]
    own = Model(converted(checkpoint, scratch, "auto"))
    calibration = scratch / "calibration.json"
    document = {"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": own.maxima(texts[:4])}
    calibration.write_text(json.dumps(document))
    runs = {
        "bfloat16": (own, OWN),
        "fp8, scale 1": (own, CacheOptions("fp8", reuse="off")),
        "fp8": (Model(converted(checkpoint, scratch, "fp8", calibration)), CacheOptions(reuse="off")),
        "int8": (Model(converted(checkpoint, scratch, "int8", calibration)), CacheOptions(reuse="off")),
        "int4": (own, CacheOptions("int4", reuse="off")),
    }
    figures = []
    for name, (model, cache) in runs.items():
        # Piece by piece, so that tokens attend to what was stored, as in an answer.
        nats = torch.cat([model.nats(text, cache, 64) for text in texts[4:]])
        storage = assemble(model.config, model.weights, cache, Sizes(1, TEXT_TOKENS, TEXT_TOKENS)).storage
        figures.append(Figure(name, storage.num_bytes / TEXT_TOKENS, math.exp(float(nats.mean()))))
        show(figures[-1], figures[0])
    return figures


def show(figure: Figure, base: Figure) -> None:
    change = 100 * (figure.perplexity / base.perplexity - 1)
    sys.stdout.write(f"{figure.name:<16} {figure.bytes_per_token:>8.0f} {figure.perplexity:>9.3f} {change:>+8.2f} %\n")
    sys.stdout.flush()


def measure_stream(model: Model, ids: list[int], sinks: int, window: int) -> dict[str, torch.Tensor]:
    """-log p at every STRIDE-th token of a long stream, once the window is full."""
    whole = sinks + window
    places = range(2 * whole - 1, len(ids) - 1, STRIDE)
    kept = {
        "sinks + window": CacheOptions(reuse="off", sink_tokens=sinks, window_tokens=window),
        "window": CacheOptions(reuse="off", window_tokens=whole),
    }
    found = {name: model.nats(ids, cache, 128)[list(places)] for name, cache in kept.items()}
    recomputed = []
    for place in places:
        logits = model.sequence(OWN).feed(ids[place + 1 - whole : place + 1])[-1]
        recomputed.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[place + 1])))
    return {"recomputed": torch.stack(recomputed), **found}


def plot(stream: dict[str, torch.Tensor], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2))
    for name, nats in stream.items():
        smooth = nats.unfold(0, min(64, len(nats)), 8).mean(1).exp()
        axes.plot([STRIDE * 8 * index for index in range(len(smooth))], smooth, label=name)
    axes.set(xlabel="tokens of the stream", ylabel="perplexity (64 measured tokens)", yscale="log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--texts", type=int, default=16, help="texts of 1,024 tokens that formats are measured on")
    parser.add_argument("--stream-tokens", type=int, default=20_000)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--window", type=int, default=252)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ids = text_ids(arguments.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sys.stdout.write("cache            B/token  perplexity\n")
        measure_formats(arguments.checkpoint, ids, arguments.texts, scratch)
        stream = measure_stream(
            Model(scratch / "auto"), ids[: arguments.stream_tokens], arguments.sinks, arguments.window
        )
    base = Figure("recomputed", 0, math.exp(float(stream["recomputed"].mean())))
    sys.stdout.write(f"stream of {arguments.stream_tokens} tokens, {len(stream['window'])} measured\n")
    for name, nats in stream.items():
        show(Figure(name, 0, math.exp(float(nats.mean()))), base)
    if arguments.plot:
        plot(stream, arguments.plot)


if __name__ == "__main__":
    main()
