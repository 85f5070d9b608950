"""Rules about what only a comparison of answers can decide. Knows formats, no model."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit


def _quantised_cache(deployment: Deployment) -> Iterable[Hit]:
    dtype = deployment.config.kv_cache.dtype
    if dtype != "auto":
        yield hit("kv_cache.dtype", dtype=dtype)


ANSWER_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="KV-PARITY",
        severity="note",
        looks_at="YAML",
        when="the KV cache is quantised",
        cause="an {dtype} KV cache changes answers, with bad scales to garbage, which only a comparison shows",
        fix="run `trtkit parity check` on the build before it serves, long answers and repeated prompts included",
        source="TensorRT-LLM issues #133, #1303, #2699; PRs #3675, #16916",
        find=_quantised_cache,
        example=hit("kv_cache.dtype", dtype="fp8"),
    ),
)
