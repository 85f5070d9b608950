"""Is the tolerance as large as real rounding, and no larger? The same model in two dtypes, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny import tiny_checkpoint
from trtkit.evaluate.oracle.conditioning import measure_conditioning
from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.rounding_cache import RoundingCache, measure_kv_error
from trtkit.evaluate.oracle.tolerance import Dtype, LogitPair, NumericProfile, loses_bits, near_tie_tolerance
from trtkit.prompts.encoding import PromptEncoder
from trtkit.prompts.files import choose_prompts


@dataclass(frozen=True)
class Flip:
    """The best token changed: the oracle's margin between the two, and the tolerance for it."""

    margin: float
    tolerance: float


Sequences = Sequence[tuple[Sequence[int], int]]  # token ids, and how many of the last ones count


def flips_of(folder: Path, dtype: Dtype, sequences: Sequences) -> list[Flip]:
    """Where the best token changes when the same checkpoint is computed in `dtype`, token by token."""
    exact, rounded = Oracle.load(folder), Oracle.load(folder, dtype=dtype)
    profile = NumericProfile(
        dtype,
        exact.num_layers,
        exact.hidden_size,
        loses_bits(exact.weights_dtype, dtype),
        measure_conditioning(exact, folder, sequences),
    )
    head = exact.model.get_output_embeddings().weight.detach().float()
    flips = []
    for sequence, num_last in sequences:
        states = exact.states(sequence)[-num_last:]
        logits, others = (logits_of(oracle, sequence)[-num_last:] for oracle in (exact, rounded))
        best, other_best = logits.argmax(1).tolist(), others.argmax(1).tolist()
        for position in [i for i, (a, b) in enumerate(zip(best, other_best, strict=True)) if a != b]:
            a, b, row = best[position], other_best[position], logits[position]
            distance = (head[a] - head[b]).norm().item()
            pair = LogitPair(states[position].norm().item(), distance, max(abs(row[a].item()), abs(row[b].item())))
            flips.append(Flip((row[a] - row[b]).item(), near_tie_tolerance(profile, pair)))
    return flips


def logits_of(oracle: Oracle, token_ids: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle.model(input_ids=torch.tensor([list(token_ids)])).logits[0].float()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def random_sequences() -> Sequences:
    generator = torch.Generator().manual_seed(0)
    return [(ids, len(ids)) for ids in torch.randint(3, 320, (8, 48), generator=generator).tolist()]


def kv_flips_of(folder: Path, kind: str, sequences: Sequences) -> list[Flip]:
    """Where the best token changes when nothing but the cache rounds keys and values."""
    oracle = Oracle.load(folder)
    error = measure_kv_error(oracle, sequences, kind)
    profile = NumericProfile("float32", oracle.num_layers, oracle.hidden_size, kv_error=error)
    head = oracle.model.get_output_embeddings().weight.detach().float()
    flips = []
    for sequence, num_last in sequences:
        exact, moved = oracle.states(sequence)[-num_last:], oracle.states(sequence, RoundingCache(kind))[-num_last:]
        for state, other in zip(exact, moved, strict=True):
            row = state @ head.T
            a, b = int(row.argmax()), int((other @ head.T).argmax())
            if a != b:
                magnitude = max(abs(row[a].item()), abs(row[b].item()))
                pair = LogitPair(state.norm().item(), (head[a] - head[b]).norm().item(), magnitude)
                flips.append(Flip((row[a] - row[b]).item(), near_tie_tolerance(profile, pair)))
    return flips


@pytest.mark.parametrize(("family", "kind"), [("llama", "fp8"), ("qwen2", "fp8"), ("llama", "int8"), ("llama", "int4")])
def test_random_models_flip_within_the_tolerance_of_their_cache(
    family: str, kind: str, random_sequences: Sequences, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", family, num_hidden_layers=6)
    flips = kv_flips_of(folder, kind, [(ids, len(ids) - 1) for ids, _ in random_sequences])
    assert flips or kind == "int8"
    assert [flip for flip in flips if flip.margin > flip.tolerance] == []


# Random weights amplify rounding more than trained ones: their conditioning is 2 to 4 here.
@pytest.mark.parametrize(
    ("family", "num_layers", "dtype"),
    [
        ("llama", 3, "bfloat16"),
        ("llama", 12, "bfloat16"),
        ("llama", 12, "float16"),
        ("qwen2", 12, "bfloat16"),
        ("qwen2", 3, "bfloat16"),
    ],
)
def test_random_models_flip_within_the_tolerance(
    family: str, num_layers: int, dtype: Dtype, random_sequences: Sequences, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", family, num_hidden_layers=num_layers)
    flips = flips_of(folder, dtype, random_sequences)
    assert flips or dtype == "float16"
    assert [flip for flip in flips if flip.margin > flip.tolerance] == []


def test_float32_hardly_ever_flips_and_then_within_its_tolerance(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "tiny", num_hidden_layers=12)
    exact = Oracle.load(folder)
    sequence = list(range(3, 67))
    one_pass = exact.states(sequence)
    steps = torch.stack([exact.states(sequence[: end + 1])[-1] for end in range(len(sequence))])
    error = ((one_pass - steps).norm(dim=1) / one_pass.norm(dim=1)).max().item()
    conditioning = measure_conditioning(exact, folder, [(sequence, len(sequence))])
    assert 0 < error < NumericProfile("float32", 12, 64, conditioning=conditioning).state_error


@pytest.fixture(scope="module")
def demo_answers(demo_pair: dict[str, Path]) -> dict[str, Sequences]:
    """Prompts with the oracle's greedy answers, of target and draft; the answers count."""
    answers = {}
    for role, folder in demo_pair.items():
        oracle, encoder = Oracle.load(folder), PromptEncoder.load(folder)
        encoded = [encoder.encode(prompt).prompt_ids for prompt in choose_prompts(None, 5)]
        tokens = [[token for token, _ in oracle.answer(ids, 32, [2])] for ids in encoded]
        answers[role] = [((*ids, *answer), len(answer)) for ids, answer in zip(encoded, tokens, strict=True)]
    return answers


@pytest.mark.demo
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_demo_pair_flips_within_the_tolerance(
    role: str, dtype: Dtype, demo_pair: dict[str, Path], demo_answers: dict[str, Sequences]
) -> None:
    flips = flips_of(demo_pair[role], dtype, demo_answers[role])
    assert [flip for flip in flips if flip.margin > flip.tolerance] == []
    if dtype == "bfloat16":
        # The tolerance is of the size of what it explains: the largest flip takes a good part of it.
        assert max(flip.margin / flip.tolerance for flip in flips) > 0.05


@pytest.mark.demo
@pytest.mark.parametrize("role", ["target", "draft"])
def test_trained_models_are_conditioned_as_their_depth_explains(
    role: str, demo_pair: dict[str, Path], demo_answers: dict[str, Sequences]
) -> None:
    folder = demo_pair[role]
    assert 0.7 < measure_conditioning(Oracle.load(folder), folder, demo_answers[role]) < 2
