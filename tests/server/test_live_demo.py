"""The demo pair in float32 behind a real server: ensemble and BLS say what PyTorch's own model says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kserve import KServeStream, kserve_stream
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trtkit.config.load import parse_config
from trtkit.pipeline.run import BuildOptions, build
from trtkit.server.launch import ServerOptions
from trtkit.server.triton_server import TritonServer

pytestmark = [pytest.mark.tritonserver, pytest.mark.demo]
NUM_TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Translate to Japanese: good morning =",
)


@pytest.fixture(scope="module")
def stream(demo_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KServeStream]:
    out = tmp_path_factory.mktemp("demo") / "build"
    models = {role: {"checkpoint": str(demo_pair[role]), "dtype": "float32"} for role in ("target", "draft")}
    document = {
        "name": "demo",
        "backend": "reference",
        **models,
        "speculation": {"kind": "draft_target", "max_draft_len": 4},
        "limits": {"max_batch_size": 2, "max_input_len": 64, "max_output_len": 64},
    }
    build(parse_config(document, where="demo"), BuildOptions(cache=out.parent, where="demo", out=out))
    with TritonServer(out, options=ServerOptions(num_threads=2)) as server:
        with kserve_stream(server.endpoints.grpc) as connected:
            yield connected


@pytest.fixture(scope="module")
def oracle(demo_pair: dict[str, Path]) -> dict[str, tuple[list[int], str]]:
    """Prompt -> the greedy answer of the original checkpoint, as ids and as text."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(demo_pair["target"], dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(demo_pair["target"])
    answers = {}
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            whole = model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)
        ids = [token for token in whole[0, inputs["input_ids"].shape[1] :].tolist() if token != tokenizer.eos_token_id]
        answers[prompt] = ids, tokenizer.decode(ids, skip_special_tokens=True)
    return answers


def ask(stream: KServeStream, model: str, prompt: str, *, streaming: bool, **more: Any) -> list[dict[str, Any]]:
    return stream.ask(
        model,
        text_input=("BYTES", [[prompt.encode()]]),
        max_tokens=("INT32", [[NUM_TOKENS]]),
        stream=("BOOL", [[streaming]]),
        exclude_input_in_output=("BOOL", [[True]]),
        **more,
    )


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("draft_len", [0, 4])
def test_the_draft_target_loop_gives_the_oracles_tokens(
    stream: KServeStream, oracle: dict[str, tuple[list[int], str]], prompt: str, streaming: bool, draft_len: int
) -> None:
    more = {"num_draft_tokens": ("INT32", [[draft_len]])}
    responses = ask(stream, "tensorrt_llm_bls", prompt, streaming=streaming, **more)
    ids, text = oracle[prompt]
    assert [token for response in responses for token in response["output_ids"][0]] == ids
    assert "".join(response["text_output"][0][0].decode() for response in responses) == text


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("streaming", [True, False])
def test_the_ensemble_gives_the_oracles_text(
    stream: KServeStream, oracle: dict[str, tuple[list[int], str]], prompt: str, streaming: bool
) -> None:
    """Its tokens are inside; whole texts tell them apart. Streamed, each response is the text of its own tokens."""
    responses = ask(stream, "ensemble", prompt, streaming=streaming)
    text = b"".join(response["text_output"][0][0] for response in responses).decode()
    expected = oracle[prompt][1]
    assert len(responses) == (NUM_TOKENS if streaming else 1)
    assert text == expected if expected.isascii() or not streaming else text.isprintable()
