"""Loads a causal language model of transformers onto a device. No code of the checkpoint is run, no network asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from trtkit.errors import CheckpointError, MissingToolError
from trtkit.evaluate.oracle.tolerance import Dtype


def load_model(folder: Path, dtype: Dtype, device: str) -> Any:
    """The model of a Hugging Face folder.

    Raises CheckpointError when transformers cannot load it, MissingToolError when torch cannot use the device.
    """
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **offline)
        auto: Any = transformers.AutoModelForCausalLM
        # The fused kernels leave out the cap of scores, without a word.
        eager = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
        with _no_bars():
            model = auto.from_pretrained(
                folder, config=config, dtype=getattr(torch, dtype), use_safetensors=True, **offline, **eager
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise CheckpointError(
            f"transformers cannot load it: {error}",
            "check that the folder holds config.json and safetensors of an architecture that transformers knows",
            code="ORACLE-LOAD",
            where=str(folder),
        ) from error
    return _moved(model, device)


def _moved(model: Any, device: str) -> Any:
    """The model on a device; there may be none of this name, or no room on it."""
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise MissingToolError(
            f"torch cannot use the device {device}: {error}", "give another --device, or cpu", code="ORACLE-DEVICE"
        ) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal while it loads."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
