"""Why a trtllm-build (or its container) failed, from its exit code and log. Knows sentences and their reasons."""

import re
from dataclasses import dataclass

from trtkit.errors import BuildError, MissingToolError, TrtkitError

_LOG_TAIL_LINES = 12
_KILLED = (137, -9)
_NOT_FOUND = 127
_CANNOT_RUN = 125


@dataclass(frozen=True)
class _Known:
    """One known failure: a pattern in the log, and what it means. missing: of this machine, not of the request."""

    pattern: str
    code: str
    cause: str
    fix: str
    missing: bool = False


# First match wins, so the specific ones stand first.
_KNOWN = (
    _Known(
        r"unrecognized arguments: (?P<what>.+)|invalid choice: (?P<choice>.+)",
        "BUILD-GRAMMAR",
        "this trtllm-build does not know an option that the release in the YAML has: {what}{choice}",
        "write the installed version under tensorrt_llm, or build in its container: --runner docker",
    ),
    _Known(
        r"StreamingLLM is (?P<what>.+)",
        "SINK-VERSION",
        "the builder refuses attention sinks: StreamingLLM is {what}",
        "use attention_sinks.strategy: rolling, or a Llama model with TensorRT-LLM up to 0.21",
    ),
    _Known(
        r"Required but not provided tensors:?\s*(?P<what>.+)",
        "BUILD-TENSOR",
        "the checkpoint lacks tensors that the builder needs: {what}",
        "convert it again with this version of trtkit; the conversion and the release disagree",
    ),
    _Known(
        r"(?P<what>(INT8/INT4 quantization|SmoothQuant|Per-channel or per-token scaling) is not supported on SM>=100)",
        "BUILD-SM",
        "{what}",
        "choose fp8 or nvfp4 for this GPU",
    ),
    _Known(
        r"(?P<what>\w+=\w+ is not supported on SM \d+)",
        "BUILD-SM",
        "{what}",
        "this option is not for this GPU; report it, trtkit should not have written it",
    ),
    _Known(
        r"Gather context logits is not support",
        "LOGITS-SPEC",
        "context logits and drafts exclude each other",
        "build a second engine without drafts to look at context logits",
    ),
    _Known(
        r"Unsupported model architecture: (?P<what>\S+)",
        "BUILD-ARCH",
        "this release does not know the architecture {what}",
        "choose a newer release under tensorrt_llm",
    ),
    _Known(
        r"getIdx\(\)",
        "BUILD-FP8-FMHA",
        "FP8 context FMHA was built without an FP8 KV cache (TensorRT-LLM issue #2112)",
        "write kv_cache.dtype: fp8, or use weights that are not FP8",
    ),
    _Known(
        r"Found no NVIDIA driver|no CUDA-capable device|CUDA driver version is insufficient"
        r"|could not select device driver",
        "GPU-MISSING",
        "the builder found no usable NVIDIA GPU",
        "run on a machine with an NVIDIA GPU and a driver for the release's CUDA (trtkit doctor)",
        missing=True,
    ),
    _Known(
        r"CUDA out of memory|OutOfMemoryError|Cuda Runtime \(out of memory\)|cudaErrorMemoryAllocation",
        "BUILD-GPU-OOM",
        "the GPU's memory did not suffice for the build",
        "lower limits.max_batch_size or max_input_len, raise tensor_parallel, or stop what else uses the GPU",
    ),
    _Known(
        r"No space left on device(?:: '(?P<what>[^']+)')?",
        "DISK",
        "the disk is full {what}",
        "free space or choose another --out; earlier stages are kept",
        missing=True,
    ),
    _Known(
        r"Cannot connect to the Docker daemon|permission denied while trying to connect",
        "CONTAINER",
        "the container runtime is not running, or this user may not use it",
        "start it, or add the user to its group",
        missing=True,
    ),
    _Known(
        r"manifest unknown|pull access denied|unauthorized: authentication required",
        "CONTAINER-IMAGE",
        "the image of this release cannot be pulled",
        "pull it once by hand, logged in to the registry, or build locally: --runner local",
        missing=True,
    ),
)


def explain_failure(return_code: int, log: str, *, stage: str, log_file: str, needed_bytes: int | None) -> TrtkitError:
    """The error for a failed build.

    `needed_bytes` is the estimate of the host memory that the build wanted, for the message when it was killed.
    """
    # A pool that lost a worker to the kernel says so, and ends with an ordinary exit code.
    if return_code in _KILLED or "terminated abruptly" in log:
        wanted = f"; its ranks need about {needed_bytes / 2**30:.0f} GiB" if needed_bytes else ""
        return BuildError(
            f"{stage} was killed (exit code {return_code}): the host ran out of memory{wanted}",
            "close other programs, raise the container's memory limit, or build on a larger host",
            code="BUILD-HOST-OOM",
            where=log_file,
        )
    for known in _KNOWN:
        found = re.search(known.pattern, log)
        if found:
            words = {name: (text or "").strip() for name, text in found.groupdict().items()}
            kind = MissingToolError if known.missing else BuildError
            return kind(known.cause.format(**words).strip(), known.fix, code=known.code, where=log_file)
    if return_code in (_NOT_FOUND, _CANNOT_RUN):
        return MissingToolError(
            f"{stage} could not be started (exit code {return_code})",
            "trtkit doctor says what is installed",
            code="BUILD-TOOL",
            where=log_file,
        )
    tail = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
    return BuildError(
        f"{stage} failed (exit code {return_code}):\n{tail}",
        "the whole log is in the file named above; earlier stages are kept",
        code="BUILD-FAILED",
        where=log_file,
    )
