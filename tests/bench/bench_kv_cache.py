"""What each KV cache of the reference engine costs in perplexity: formats on whole texts, windows on one long stream.

    python tests/bench/bench_kv_cache.py                       # bfloat16, SmolLM2 as `trtkit demo` prepared it
    python tests/bench/bench_kv_cache.py --stream-tokens 4096 --plot docs/kv_stream.svg

The text is the reference part of Python's own documentation, which every CPython brings along. The INT8 and FP8 scales
are the maxima of the first part of it, converted with the checkpoint, "merged" those that TensorRT-LLM makes of them;
perplexities are of the rest. "recomputed" is the window without a cache: at every STRIDE-th token its last tokens are
computed anew from position 0. The other two are measured at the same tokens. NLL in nats.
"""

import argparse
import json
import math
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
Change = Callable[[torch.Tensor], torch.Tensor]
"""Rows of keys and values [N, 2 * H * D] -> what is stored in their place."""


class Model:
    """A converted checkpoint, fed without an engine around it."""

    def __init__(self, folder: Path) -> None:
        self.config = read_config(folder)
        self.weights = WeightLoader(folder, self.config, torch.device("cpu")).load(TEXT_TOKENS)

    def sequence(self, cache: CacheOptions, change: Change | None = None) -> LoneSequence:
        assembly = assemble(self.config, self.weights, cache, Sizes(1, TEXT_TOKENS, TEXT_TOKENS))
        if change is not None:
            write = assembly.storage.write
            assembly.storage.write = lambda layer, rows, held: write(layer, rows, change(held))  # type: ignore[method-assign]
        return LoneSequence(assembly)

    def nats(
        self, token_ids: Sequence[int], cache: CacheOptions, piece: int, change: Change | None = None
    ) -> torch.Tensor:
        """-log p of every token but the first, given those before it as the cache keeps them."""
        sequence, parts = self.sequence(cache, change), []
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
    """One line of a table. error: of the perplexity's ratio to the first line's, token by token."""

    name: str
    bytes_per_token: float
    perplexity: float
    error: float = 0.0


def text_ids(checkpoint: Path) -> list[int]:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    return ids


def converted(checkpoint: Path, scratch: Path, kv_dtype: str, calibration: Path | None = None) -> Path:
    options = ConversionOptions(dtype="bfloat16", kv_cache_dtype=kv_dtype, calibration=calibration)  # type: ignore[arg-type]
    convert_to(checkpoint, scratch / kv_dtype, options)
    return scratch / kv_dtype


def cut(ids: list[int], num_texts: int) -> list[list[int]]:
    return [ids[start : start + TEXT_TOKENS] for start in range(0, num_texts * TEXT_TOKENS, TEXT_TOKENS)]


def measure_formats(checkpoint: Path, ids: list[int], num_texts: int, scratch: Path) -> list[Figure]:
    texts = cut(ids, num_texts + 4)
    own = Model(converted(checkpoint, scratch, "auto"))
    maxima = own.maxima(texts[:4])
    merged = {layer: dict.fromkeys("kv", max(both.values())) for layer, both in maxima.items()}

    def scaled(kind: str, limits: dict[str, dict[str, float]], name: str) -> Model:
        calibration = scratch / f"{name}.json"
        calibration.write_text(json.dumps({"schema": "trtkit.calibration/1", "inputs": {}, "kv_cache": limits}))
        return Model(converted(checkpoint, scratch / name, kind, calibration))

    automatic = CacheOptions(reuse="off")
    runs = {
        "bfloat16": (own, OWN),
        "fp8, scale 1": (own, replace(OWN, dtype="fp8")),
        "fp8, merged": (scaled("fp8", merged, "merged"), automatic),
        "fp8": (scaled("fp8", maxima, "separate"), automatic),
        "int8, merged": (scaled("int8", merged, "merged"), automatic),
        "int8": (scaled("int8", maxima, "separate"), automatic),
        "int4": (own, replace(OWN, dtype="int4")),
    }
    return figures_of({name: (model, cache, None) for name, (model, cache) in runs.items()}, texts[4:])


def figures_of(runs: dict[str, tuple[Model, CacheOptions, Change | None]], texts: Sequence[list[int]]) -> list[Figure]:
    """The first one is what the others are held against."""
    figures: list[Figure] = []
    exact = torch.empty(0)
    for name, (model, cache, change) in runs.items():
        # Piece by piece, so that tokens attend to what was stored, as in an answer.
        nats = torch.cat([model.nats(text, cache, 64, change) for text in texts])
        exact = exact if figures else nats
        error = float((nats - exact).std()) / len(nats) ** 0.5
        storage = assemble(model.config, model.weights, cache, Sizes(1, TEXT_TOKENS, TEXT_TOKENS)).storage
        figures.append(Figure(name, storage.num_bytes / TEXT_TOKENS, math.exp(float(nats.mean())), error))
        show(figures[-1], figures[0])
    return figures


def mantissa(bits: int) -> Change:
    """Keep so many bits behind the leading one, at any exponent."""

    def change(held: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(held.float())
        steps = 2.0 ** (bits + 1)
        return torch.ldexp((fraction * steps).round() / steps, exponent).to(held.dtype)

    return change


def fp8_of_each_head(head_dim: int) -> Change:
    """e4m3 with a scale for every token and head, its largest number / 448."""

    def change(held: torch.Tensor) -> torch.Tensor:
        heads = held.float().view(len(held), -1, head_dim)
        scale = heads.abs().amax(2, keepdim=True).clamp(min=1e-9) / 448
        codes = (heads / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return (codes.float() * scale).to(held.dtype).view(held.shape)

    return change


def measure_limits(model: Model, texts: Sequence[list[int]]) -> list[Figure]:
    """What limits FP8: its range, the grain of its scales, or the bits of its mantissa."""
    changes: dict[str, Change | None] = {
        "bfloat16": None,
        "fp8, token+head": fp8_of_each_head(model.config.head_dim),
        "3 bits": mantissa(3),
        "4 bits": mantissa(4),
    }
    return figures_of({name: (model, OWN, change) for name, change in changes.items()}, texts)


def show(figure: Figure, base: Figure) -> None:
    change = 100 * (figure.perplexity / base.perplexity - 1)
    line = f"{figure.name:<16} {figure.bytes_per_token:>8.0f} {figure.perplexity:>9.3f} {change:>+8.2f} %"
    sys.stdout.write(f"{line} +- {100 * figure.error:.2f}\n")
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
    parser.add_argument("--limits", action="store_true", help="also what FP8 costs by its range, scales and mantissa")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ids = text_ids(arguments.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sys.stdout.write("cache            B/token  perplexity\n")
        measure_formats(arguments.checkpoint, ids, arguments.texts, scratch)
        if arguments.limits:
            measure_limits(Model(scratch / "auto"), cut(ids, arguments.texts + 4)[4:])
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
