"""A session of 20,000 tokens on the demo pair with a rolling window of 1,024. Half an hour; run with -m slow -s."""

import math
import re
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from kserve import kserve_stream
from process_memory import memory_mib
from transformers import AutoModelForCausalLM, PreTrainedModel
from trtkit.config.load import parse_config
from trtkit.pipeline.run import BuildOptions, build
from trtkit.server.triton_server import TritonServer
from trtkit.serving.context import Context, RollingWindow
from trtkit.serving.text import TextTokenizer

pytestmark = [pytest.mark.tritonserver, pytest.mark.slow, pytest.mark.demo]
WINDOW = RollingWindow(sink_tokens=4, window_tokens=1024, evict_tokens=256)
DRAFT_LEN = 4
NUM_TOKENS = 20_000
WARM_TOKENS = 4_000
NUM_POSITIONS = 250
# Triton keeps every streamed response of an answer until the answer has ended; the next answer uses the memory again.
KEPT_RESPONSE_MIB = 2 / 1024
PROMPT = "The history of the lighthouse begins long before there was a town beside it."


@dataclass
class Session:
    """What came back, step by step, and the server's memory (MiB by process) once warm and at the end."""

    prompt_ids: list[int]
    steps: list[list[int]] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    num_evicted: int = 0

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + [token for step in self.steps for token in step]


@pytest.fixture(scope="module")
def rolling_build(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    sinks = {"sink_tokens": WINDOW.sink_tokens, "window_tokens": WINDOW.window_tokens, "strategy": "rolling"}
    document = {
        "name": "rolling",
        "backend": "reference",
        "target": {"checkpoint": str(demo_pair["target"]), "dtype": "bfloat16"},
        "draft": {"checkpoint": str(demo_pair["draft"]), "dtype": "bfloat16"},
        "speculation": {"kind": "draft_target", "max_draft_len": DRAFT_LEN},
        "attention_sinks": sinks,
        "limits": {"max_batch_size": 2, "max_input_len": 1088, "max_output_len": 128},
    }
    out = tmp_path_factory.mktemp("rolling") / "build"
    config = parse_config(document, where="rolling")
    build(config, BuildOptions(cache=out.parent, where="rolling", out=out))
    return out


@pytest.fixture(scope="module")
def session(rolling_build: Path) -> Session:
    """One answer that may not end early, drawn from the model's whole distribution: at a lower temperature a small
    model soon repeats itself, and repeated text has a perplexity of 1 whatever the window."""
    prompt_ids = TextTokenizer.load(rolling_build / "tokenizer").encode(PROMPT, add_special_tokens=True)
    found = Session(prompt_ids)
    with TritonServer(rolling_build) as server, kserve_stream(server.endpoints.grpc) as stream:
        stream.send(
            "tensorrt_llm_bls",
            text_input=("BYTES", [[PROMPT.encode()]]),
            max_tokens=("INT32", [[NUM_TOKENS]]),
            min_tokens=("INT32", [[NUM_TOKENS]]),
            temperature=("FP32", [[1.0]]),
            top_k=("INT32", [[0]]),
            top_p=("FP32", [[1.0]]),
            seed=("UINT64", [[7]]),
            stream=("BOOL", [[True]]),
        )
        count = 0
        for response in stream.responses(wait_s=600):
            found.steps.append(response["output_ids"][0])
            before, count = count, count + len(found.steps[-1])
            if before < WARM_TOKENS <= count:
                found.memory.append(memory_mib(server))
            if "num_evicted_tokens" in response:
                found.num_evicted = response["num_evicted_tokens"][0][0]
        found.memory.append(memory_mib(server))
        found.counters = counters(server)
    return found


def counters(server: TritonServer) -> dict[str, float]:
    url = f"http://{server.endpoints.host}:{server.endpoints.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        found = re.findall(r'^trtkit_(\w+)\{model="(\w+)"\} (\S+)$', response.read().decode(), flags=re.M)
    return {f"{model}/{name}": float(value) for name, model, value in found}


def contexts(session: Session) -> Iterator[tuple[list[int], list[int]]]:
    """(what the models were shown first, the tokens they added) of every stretch between two evictions."""
    context = Context(session.prompt_ids, WINDOW)
    shown, added, num_evicted = list(session.prompt_ids), list[int](), 0
    for step in session.steps:
        room = context.make_room(DRAFT_LEN + 1)
        if context.num_evicted_tokens != num_evicted:
            yield shown, added
            shown, added, num_evicted = list(room), [], context.num_evicted_tokens
        context.append(step)
        added += step
    yield shown, added


def losses(model: PreTrainedModel, shown: list[int], added: list[int]) -> list[float]:
    """-log p of each added token, given everything before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([shown + added]), logits_to_keep=len(added) + 1).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(added), reduction="none").tolist()


@pytest.mark.timeout(7200)
def test_the_session_is_whole_and_its_memory_bounded(session: Session) -> None:
    assert sum(map(len, session.steps)) == NUM_TOKENS
    assert session.num_evicted >= NUM_TOKENS - WINDOW.capacity_tokens - WINDOW.evict_tokens
    warm, after = session.memory
    sys.stdout.write(f"\nmemory MiB after {WARM_TOKENS} tokens {warm}, after {NUM_TOKENS} {after}\n")
    allowed = dict.fromkeys(warm, 16.0)
    allowed["server"] += len(session.steps) * KEPT_RESPONSE_MIB
    assert all(after[name] < warm[name] + allowed[name] for name in warm)


@pytest.mark.timeout(7200)
def test_between_evictions_prompts_are_found_in_the_cache(session: Session) -> None:
    target = {name: session.counters[f"tensorrt_llm/engine_{name}_tokens"] for name in ("reused", "prompt")}
    share = target["reused"] / target["prompt"]
    num_evictions = session.num_evicted / WINDOW.evict_tokens
    computed = (target["prompt"] - target["reused"]) / NUM_TOKENS
    sys.stdout.write(f"\n{num_evictions:.0f} evictions, {share:.2%} of prompt tokens reused, {computed:.2f} computed")
    sys.stdout.write(f" for each token of the session\n{session.counters}\n")
    # Without reuse a step would compute the whole window; with it, its own tokens, and the window once an eviction.
    window_per_token = (WINDOW.capacity_tokens - WINDOW.evict_tokens) / WINDOW.evict_tokens
    assert computed < 1.2 * window_per_token + DRAFT_LEN + 2
    assert share > 0.9


@pytest.mark.timeout(7200)
def test_perplexity_stays_within_a_tenth_of_re_computation(session: Session, demo_pair: dict[str, Path]) -> None:
    """Re-computation: every token from the window of tokens before it, encoded anew (StreamingLLM's yardstick)."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(demo_pair["target"], dtype=torch.bfloat16)
    rolled = [loss for shown, added in contexts(session) for loss in losses(model, shown, added)]
    everything, start = session.token_ids, len(session.prompt_ids)
    first = WINDOW.capacity_tokens
    positions = range(first, NUM_TOKENS, (NUM_TOKENS - first) // NUM_POSITIONS)
    recomputed = []
    for position in positions:
        end = start + position
        window = everything[end - WINDOW.window_tokens : end]
        recomputed += losses(model, window, [everything[end]])
    here = math.exp(sum(rolled[position] for position in positions) / len(positions))
    there = math.exp(sum(recomputed) / len(positions))
    whole = math.exp(sum(rolled) / len(rolled))
    assert there > 2, "the session repeats itself, and says nothing about the window"
    sys.stdout.write(f"\nperplexity rolling {here:.3f}, re-computed {there:.3f}, of the whole session {whole:.3f}\n")
    assert here < 1.1 * there
