"""Rules about the sizes a server must hold, what the builder makes of them, and files that are not there. Knows no
memory (trtkit plan does).
"""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checkpoints.model_spec import ModelSpec

ABSENT_FILE = "FILE-ABSENT"
_KEYS = {"sequences": "limits.max_input_len and max_output_len together", "prompts": "limits.max_input_len"}


def _positions(deployment: Deployment) -> Iterable[Hit]:
    limits, sinks = deployment.config.limits, deployment.config.attention_sinks
    if sinks is not None and sinks.strategy == "rolling":
        return  # then a model is shown sinks and window at most, which SINK-POSITIONS looks at
    # The engine's own sinks number positions inside the cache while they generate, not while they read a prompt.
    what, asked = ("prompts", limits.max_input_len) if sinks else ("sequences", limits.max_seq_len)
    for role, spec in deployment.specs.items():
        longest = scaled_positions(spec.max_seq_len, spec.rope_scaling)
        if asked > longest:
            fix = _as_yarn(spec, asked) or f"lower {_KEYS[what]} to {longest}, or use attention_sinks"
            yield hit("limits", role=role, longest=longest, asked=asked, what=what, fix=fix)


def _absent_files(deployment: Deployment) -> Iterable[Hit]:
    for key, file in deployment.absent_files.items():
        yield hit(key, file=file)


def scaled_positions(positions: int, rope_scaling: dict[str, object] | None) -> int:
    """Positions times the factor of linear and dynamic rope; other kinds count it in max_position_embeddings.

    The rule of commands/build.py for the default of --max_seq_len.
    """
    kind, factor = (rope_scaling or {}).get("rope_type"), (rope_scaling or {}).get("factor")
    if kind in ("linear", "dynamic") and isinstance(factor, (int, float)):
        return int(positions * factor)
    return positions


def _as_yarn(spec: ModelSpec, asked: int) -> str | None:
    """What to mend where yarn reaches far enough: TensorRT-LLM takes its length from max_position_embeddings."""
    scaling = spec.rope_scaling or {}
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if scaling.get("rope_type") != "yarn" or not isinstance(factor, (int, float)) or not isinstance(original, int):
        return None
    reach = int(original * factor)
    return (
        f"write max_position_embeddings: {reach} into config.json, as far as its yarn reaches"
        if asked <= reach
        else None
    )


def _written(deployment: Deployment) -> Iterable[Hit]:
    limits, draft_len = deployment.config.limits, deployment.config.max_draft_len
    if deployment.backend != "engine" or not draft_len:
        return
    spec = deployment.engine_spec("target")
    yield hit(
        "limits",
        asked=limits.max_seq_len,
        draft_len=draft_len,
        max_seq_len=spec.built_max_seq_len,
        max_num_tokens=spec.max_num_tokens,
    )


LIMIT_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="LIMIT-POSITIONS",
        severity="error",
        looks_at="YAML",
        when="max_input_len + max_output_len exceeds the positions a model was trained for; with engine sinks, "
        "max_input_len alone",
        cause="limits allow {what} of {asked} tokens; the {role} knows {longest} positions",
        fix="{fix}",
        source="max_position_embeddings and rope_scaling of config.json; TensorRT-LLM issue #1474",
        find=_positions,
        example=hit(
            "limits",
            role="draft",
            longest=2048,
            asked=5120,
            what="sequences",
            fix="lower limits.max_input_len and max_output_len together to 2048, or use attention_sinks",
        ),
    ),
    Rule(
        code=ABSENT_FILE,
        severity="error",
        looks_at="YAML",
        when="calibration.prompts or verification.prompts names a file that is not there",
        cause="there is no file {file}; a path starts at the working directory, not at the YAML",
        fix="correct the path, or leave it out: trtkit brings texts of its own",
        source="trtkit",
        find=_absent_files,
        example=hit("calibration.prompts", file="texts.jsonl"),
    ),
    Rule(
        code="LIMIT-WRITTEN",
        severity="note",
        looks_at="YAML",
        when="the builder writes other sizes than it was asked for",
        cause="with drafts of {draft_len} tokens the builder writes max_seq_len {max_seq_len} instead of {asked}, and "
        "max_num_tokens {max_num_tokens}",
        fix="nothing to do; clients may send {asked} tokens",
        source="builder.py: max_seq_len += max_draft_len",
        find=_written,
        example=hit("limits", asked=5120, draft_len=5, max_seq_len=5125, max_num_tokens=8192),
    ),
)
