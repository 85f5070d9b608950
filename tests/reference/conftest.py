"""A tiny Llama in both formats, made once, and engines on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_trtllm import tiny_model, write_checkpoint
from transformers import PreTrainedModel
from trtkit.reference.engine import Engine

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_llama() -> PreTrainedModel:
    return tiny_model()


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_llama: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tiny_llama, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_draft_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same vocabulary: it agrees with tiny_checkpoint now and then."""
    return write_checkpoint(tiny_model(seed=1, num_hidden_layers=1), tmp_path_factory.mktemp("draft"))


@pytest.fixture
def make_engine(tiny_checkpoint: Path) -> MakeEngine:
    def make(checkpoint: Path = tiny_checkpoint, **changes: Any) -> Engine:
        return Engine.load(checkpoint, **{"max_batch_size": 4, "max_seq_len": 256, **changes})

    return make


@pytest.fixture
def make_prompt() -> Callable[..., tuple[int, ...]]:
    def make(length: int, seed: int = 0) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(97, (length,), generator=generator).tolist())

    return make
