"""What the loop's model says of an answer, as tensors and as counts. Pure; sends nothing."""

from typing import Any

import numpy as np

from trtkit.acceptance import summarize
from trtkit.serving.draft_target import DraftTargetRun
from trtkit.serving.tensor import Array


def piece_outputs(text: str, token_ids: tuple[int, ...]) -> dict[str, Array]:
    """What every response has."""
    return {
        "text_output": np.array([[text.encode()]], dtype=np.object_),
        "output_ids": np.array([token_ids], dtype=np.int32),
    }


def counts_of(run: DraftTargetRun, num_prompt_tokens: int) -> dict[str, int]:
    """By how much the answer raises the counters of `metrics`."""
    summary = summarize(run.outcomes)
    return {
        "trtkit_answers": 1,
        "trtkit_prompt_tokens": num_prompt_tokens,
        "trtkit_output_tokens": len(run.token_ids),
        "trtkit_target_passes": run.num_target_passes,
        "trtkit_draft_tokens": summary.num_draft_tokens,
        "trtkit_accepted_draft_tokens": summary.num_accepted_tokens,
        "trtkit_evicted_tokens": run.num_evicted_tokens,
    }


def final_outputs(run: DraftTargetRun, num_prompt_tokens: int) -> dict[str, Array]:
    """Why the answer ended, and the figures of the whole answer."""
    summary = summarize(run.outcomes)
    values: dict[str, Any] = {
        "finish_reason": (run.finish_reason or "").encode(),
        "num_input_tokens": num_prompt_tokens,
        "num_output_tokens": len(run.token_ids),
        "num_target_passes": run.num_target_passes,
        "num_evicted_tokens": run.num_evicted_tokens,
        "acceptance_rate": summary.acceptance_rate or 0.0,
        "total_accepted_draft_tokens": summary.num_accepted_tokens,
        "total_draft_tokens": summary.num_draft_tokens,
        "draft_time_ns": run.draft_time_ns,
        "target_time_ns": run.target_time_ns,
    }
    return {
        name: np.array([[value]], dtype=np.object_ if isinstance(value, bytes) else None)
        for name, value in values.items()
    }
