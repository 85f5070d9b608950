"""Exports checkpoints with nvidia-modelopt, as a program of its own: its imports and patches stay out of the tests.

usage: modelopt_witness.py DTYPE SOURCE OUT TP [SOURCE OUT TP ...]. A model that modelopt does not export leaves the
reason in OUT/refused.txt.
"""

import sys
import warnings
from pathlib import Path
from typing import Any


def export(source: Path, out: Path, tensor_parallel: int, dtype: Any) -> None:
    """Write a TensorRT-LLM checkpoint of `source` without quantisation."""
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from modelopt.torch.export.model_utils import get_model_type
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with torch.inference_mode():
            export_tensorrt_llm_checkpoint(
                model,
                get_model_type(model),
                dtype,
                export_dir=str(out),
                inference_tensor_parallel=tensor_parallel,
            )
    except (NotImplementedError, AssertionError, TypeError) as error:
        (out / "refused.txt").write_text(f"{type(error).__name__}: {error}")


def main(arguments: list[str]) -> None:
    """Export every SOURCE OUT TP triple."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments[0])
    for source, out, tensor_parallel in zip(arguments[1::3], arguments[2::3], arguments[3::3], strict=True):
        export(Path(source), Path(out), int(tensor_parallel), dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
