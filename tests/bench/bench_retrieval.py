"""What a cache that keeps a quarter of the text still knows: heavy hitters against sinks and a window of the same size.

    python tests/bench/bench_retrieval.py                     # bfloat16, SmolLM2 as `trtkit demo` prepared it
    python tests/bench/bench_retrieval.py --plot docs/kv_retrieval.svg

Prompts of 512 tokens, four sinks, through the engine's caches, fed in pieces. "passkey" is the task of Mohtashami and
Jaggi (arXiv 2305.16300): a number, said twice, in a text that repeats itself. "animal" is a fact said once in Python's
own documentation and asked for by name. It lies between a tenth and six tenths of the text around it, before the
window. Measured is -log p of the answer's tokens, given the right ones before each, and whether all are the likeliest.
"""

import argparse
import pydoc_data.topics
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

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
PROMPT_TOKENS, SINK_TOKENS, PIECE = 512, 4, 128
WHOLE = CacheOptions("float", reuse="off")
Needle = Literal["passkey", "animal"]
NEEDLES: tuple[Needle, ...] = ("passkey", "animal")
_FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_NAMES = ("Maria", "Jonas", "Amina", "Pavel", "Ingrid", "Tomas", "Leila", "Oscar", "Nadia", "Hugo", "Selma", "Viktor")
_ANIMALS = ("elephant", "zebra", "falcon", "lobster", "panther", "turtle", "dolphin", "beaver", "giraffe", "walrus")


@dataclass(frozen=True)
class Found:
    """How well the answers are known: nats per token, the standard error over prompts, and answers all right."""

    nats: float
    error: float
    num_right: int


class _Parts(NamedTuple):
    opening: str
    needle: str
    question: str
    answer: str


def draw_prompts(tokenizer: Tokenizer, needle: Needle, count: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer), PROMPT_TOKENS together."""
    draw = random.Random(0)
    topics = pydoc_data.topics.topics
    text = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)), add_special_tokens=False).ids
    prompts = []
    for _ in range(count):
        parts = _draw_passkey(draw) if needle == "passkey" else _draw_animal(draw)
        opening, fact, question, answer = (tokenizer.encode(part, add_special_tokens=False).ids for part in parts)
        room = PROMPT_TOKENS - len(opening) - len(fact) - len(question) - len(answer)
        filler = _filler(draw, tokenizer, text, needle, room)
        at = int(room * draw.uniform(0.1, 0.6))
        prompts.append(([*opening, *filler[:at], *fact, *filler[at:], *question], answer))
    return prompts


def _filler(draw: random.Random, tokenizer: Tokenizer, text: Sequence[int], needle: Needle, room: int) -> list[int]:
    if needle == "passkey":
        return (tokenizer.encode(_FILLER, add_special_tokens=False).ids * room)[:room]
    start = draw.randrange(len(text) - room)
    return list(text[start : start + room])


def _draw_passkey(draw: random.Random) -> _Parts:
    key = "".join(draw.choice("0123456789") for _ in range(5))
    return _Parts(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it."
        " I will quiz you about the important information there. ",
        f"The pass key is {key}. Remember it. {key} is the pass key. ",
        "What is the pass key? The pass key is",
        f" {key}",
    )


def _draw_animal(draw: random.Random) -> _Parts:
    name, animal = draw.choice(_NAMES), draw.choice(_ANIMALS)
    fact = f"The favourite animal of {name} is the"
    return _Parts(
        "",
        f"\n\n{fact} {animal}.\n\n",
        f"\n\nQuestion: What is the favourite animal of {name}?\nAnswer: {fact}",
        f" {animal}",
    )


def quarter_caches() -> dict[str, CacheOptions]:
    """Everything, and two ways to keep a quarter."""
    rest = PROMPT_TOKENS // 4 - SINK_TOKENS
    window = replace(WHOLE, sink_tokens=SINK_TOKENS, window_tokens=rest)
    heavy = replace(window, heavy_tokens=rest // 2, window_tokens=rest - rest // 2)
    return {"whole": WHOLE, "sinks + window": window, "heavy hitters": heavy}


def measure(folder: Path, tokenizer: Tokenizer, needle: Needle, num_prompts: int) -> dict[str, Found]:
    """Every cache over the same prompts; folder is the converted checkpoint."""
    config = read_config(folder)
    weights = WeightLoader(folder, config, torch.device("cpu")).load(PROMPT_TOKENS)
    prompts = draw_prompts(tokenizer, needle, num_prompts)
    found = {}
    for name, cache in quarter_caches().items():
        nats, num_right = [], 0
        for prompt, answer in prompts:
            sequence = LoneSequence(assemble(config, weights, cache, Sizes(1, PROMPT_TOKENS, PROMPT_TOKENS)))
            ids, wanted = [*prompt, *answer][:-1], torch.tensor(answer)
            pieces = [sequence.feed(ids[start : start + PIECE]) for start in range(0, len(ids), PIECE)]
            logits = torch.cat(pieces)[-len(answer) :]
            nats.append(torch.nn.functional.cross_entropy(logits, wanted))
            num_right += bool((logits.argmax(1) == wanted).all())
        every = torch.stack(nats)
        found[name] = Found(float(every.mean()), float(every.std()) / len(every) ** 0.5, num_right)
        sys.stdout.write(
            f"{needle:<8} {name:<16} {found[name].nats:6.2f} +- {found[name].error:.2f} nats a token,"
            f" {num_right} of {num_prompts} right\n"
        )
        sys.stdout.flush()
    return found


def converted(checkpoint: Path, out: Path) -> Path:
    convert_to(checkpoint, out, ConversionOptions(dtype="bfloat16"))
    return out


def plot(results: dict[Needle, dict[str, Found]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2))
    for number, name in enumerate(quarter_caches()):
        found = [result[name] for result in results.values()]
        places = [index + 0.27 * number for index in range(len(found))]
        axes.bar(places, [f.nats for f in found], 0.25, yerr=[f.error for f in found], label=name)
    axes.set(xticks=[index + 0.27 for index in range(len(results))], ylabel="nats per answer token")
    axes.set_xticklabels(list(results))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_directory() / "checkpoints" / TARGET)
    parser.add_argument("--prompts", type=int, default=24, help="of each kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = converted(arguments.checkpoint, Path(scratch) / "target")
        results = {needle: measure(folder, tokenizer, needle, arguments.prompts) for needle in NEEDLES}
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
