"""Rules about the TensorRT-LLM version: known, and in the range of the backend. Knows releases, no models."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.engines.release import nearest_release, newest_engine_release, oldest_llmapi_release, releases


def _unknown(deployment: Deployment) -> Iterable[Hit]:
    if deployment.release is None:
        version = deployment.config.tensorrt_llm
        yield hit("tensorrt_llm", version=version, nearest=nearest_release(version).version)


def _no_engine_flow(deployment: Deployment) -> Iterable[Hit]:
    release = deployment.release
    if release is not None and not release.engine_flow and deployment.backend in ("engine", "reference"):
        yield hit(
            "tensorrt_llm",
            version=release.version,
            backend=deployment.backend,
            newest=newest_engine_release().version,
            oldest=releases()[0].version,
        )


def _no_llmapi(deployment: Deployment) -> Iterable[Hit]:
    release = deployment.release
    if release is not None and not release.llmapi and deployment.backend == "llmapi":
        yield hit("tensorrt_llm", version=release.version, oldest=oldest_llmapi_release().version)


def _known_bugs(deployment: Deployment) -> Iterable[Hit]:
    release, config = deployment.release, deployment.config
    shared = {
        "backend": deployment.backend,
        "kv_cache": config.kv_cache.dtype,
        "speculation": config.speculation.kind,
    }
    for bug in release.known_bugs if release else ():
        for role, spec in deployment.specs.items():
            has = shared | {"architecture": spec.architecture, "quantization": config.models[role].quantization}
            if bug.when and bug.when.items() <= has.items():
                yield hit("tensorrt_llm", version=config.tensorrt_llm, what=bug.what, issue=bug.issue)
                break


VERSION_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="VERSION-UNKNOWN",
        severity="error",
        looks_at="YAML",
        when="tensorrt_llm names no release that trtkit has facts about",
        cause="TensorRT-LLM {version} is not a release trtkit knows",
        fix="write {nearest}, the nearest known one",
        source="release notes; Triton compatibility matrix",
        find=_unknown,
        example=hit("tensorrt_llm", version="1.2.7", nearest="1.2.1"),
    ),
    Rule(
        code="VERSION-ENGINE",
        severity="error",
        looks_at="YAML",
        when="the release no longer has the engine flow, and the backend is engine or reference",
        cause="TensorRT-LLM {version} has no trtllm-build and no checkpoint format; backend {backend} writes for them",
        fix="write a version from {oldest} to {newest}, or backend: llmapi",
        source="TensorRT-LLM PRs #15907, #15918, #16369; legacy/tensorrt-backend-removal.md",
        find=_no_engine_flow,
        example=hit("tensorrt_llm", version="1.4.0rc1", backend="engine", oldest="0.17.0", newest="1.2.1"),
    ),
    Rule(
        code="VERSION-LLMAPI",
        severity="error",
        looks_at="YAML",
        when="the backend is llmapi and the release is older than 1.0",
        cause="TensorRT-LLM {version} has no stable LLM API",
        fix="write {oldest} or newer, or backend: engine",
        source="release notes of 1.0.0",
        find=_no_llmapi,
        example=hit("tensorrt_llm", version="0.21.0", oldest="1.0.0"),
    ),
    Rule(
        code="VERSION-BUG",
        severity="warning",
        looks_at="YAML",
        when="the release has a defect that trtkit knows of, and the YAML asks for what it breaks",
        cause="TensorRT-LLM {version}: {what} ({issue})",
        fix="use another release, or verify the answers with `trtkit parity`",
        source="the issues named",
        find=_known_bugs,
        example=hit(
            "tensorrt_llm",
            version="1.0.0",
            what="Qwen3-4B with FP8 weights and FP8 KV cache quantizes, but trtllm-build fails",
            issue="NVIDIA/TensorRT-LLM#9298",
        ),
    ),
)
