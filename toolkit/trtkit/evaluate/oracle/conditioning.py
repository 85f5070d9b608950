"""How strongly a model's weights amplify rounding, measured with the oracle alone. Knows no deployment."""

import math
from collections.abc import Sequence
from pathlib import Path

from trtkit.evaluate.oracle.oracle import Oracle
from trtkit.evaluate.oracle.tolerance import Dtype, loses_bits, unconditioned_state_error
from trtkit.progress import OnProgress, Progress, silent

PROBE_DTYPE: Dtype = "bfloat16"
MAX_SEQUENCES = 12


def measure_conditioning(
    oracle: Oracle, folder: Path, sequences: Sequence[tuple[Sequence[int], int]], on_progress: OnProgress = silent
) -> float:
    """The state error of the same checkpoint in bfloat16, over the error that its depth alone explains.

    sequences: (token ids, how many of the last ones count). The factor hardly depends on the dtype: bfloat16 and
    float16 gave the same within 5 % on the demo pair and within 25 % on random models, whose factors range from 1
    to 30. 1.0 for an oracle that is itself not in float32.
    """
    if oracle.dtype != "float32" or not sequences:
        return 1.0
    rounded = Oracle.load(folder, dtype=PROBE_DTYPE, device=str(oracle.model.device), quantization=oracle.quantization)
    chosen = sequences[:MAX_SEQUENCES]
    squares: list[float] = []
    for done, (token_ids, num_last) in enumerate(chosen):
        on_progress(Progress("conditioning", done, len(chosen), "answers"))
        exact, probe = (model.states(token_ids)[-num_last:] for model in (oracle, rounded))
        squares += ((probe - exact).square().sum(dim=1) / exact.square().sum(dim=1)).tolist()
    on_progress(Progress("conditioning", len(chosen), len(chosen), "answers"))
    explained = unconditioned_state_error(
        PROBE_DTYPE,
        oracle.num_layers,
        oracle.hidden_size,
        weights_rounded=oracle.quantization != "none" or loses_bits(oracle.weights_dtype, PROBE_DTYPE),
    )
    return float(f"{math.sqrt(math.fsum(squares) / len(squares)) / explained:.4g}")
