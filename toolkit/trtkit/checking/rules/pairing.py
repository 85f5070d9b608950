"""Rules about a draft and its target: tokenizers id by id, vocabulary sizes, lengths. Compares nothing itself."""

from collections.abc import Iterable

from trtkit.checking.deployment import Deployment
from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.rules.tokenizer_range import tokenizer_beyond_model
from trtkit.checkpoints.pair import show
from trtkit.conversion.options import MODELOPT_QUANTIZATIONS

_SHOWN_IDS = 5
_DRAFT = "draft.checkpoint"


def _pieces(deployment: Deployment) -> Iterable[Hit]:
    if deployment.pair is not None and deployment.pair.pieces:
        pieces = deployment.pair.pieces
        yield hit(_DRAFT, count=len(pieces), shown=show(pieces))


def _special(deployment: Deployment) -> Iterable[Hit]:
    if deployment.pair is not None and deployment.pair.special:
        special = deployment.pair.special
        yield hit(_DRAFT, count=len(special), shown=show(special))


def _segmentation(deployment: Deployment) -> Iterable[Hit]:
    if deployment.pair is not None and deployment.pair.segmentation and not deployment.pair.pieces:
        yield hit(_DRAFT, parts=", ".join(deployment.pair.segmentation))


def _unknown_to_draft(deployment: Deployment) -> Iterable[Hit]:
    """Ids of the target's tokenizer that the draft has no embedding row for."""
    tokenizer, spec = deployment.tokenizers.get("target"), deployment.specs.get("draft")
    if tokenizer is not None and spec is not None and tokenizer.max_id >= spec.vocab_size:
        yield hit(_DRAFT, largest=tokenizer.max_id, size=spec.vocab_size)


def _unknown_to_target(deployment: Deployment) -> Iterable[Hit]:
    """Ids of the draft's tokenizer that the target has no embedding row for."""
    tokenizer, spec = deployment.tokenizers.get("draft"), deployment.specs.get("target")
    if tokenizer is not None and spec is not None and tokenizer.max_id >= spec.vocab_size:
        yield hit(_DRAFT, largest=tokenizer.max_id, size=spec.vocab_size)


def _only_target(deployment: Deployment) -> Iterable[Hit]:
    spec = deployment.specs.get("draft")
    if deployment.pair is None or spec is None:
        return
    ids = [token_id for token_id in deployment.pair.only_target if token_id < spec.vocab_size]
    if ids:
        names = deployment.tokenizers["target"].pieces_by_id
        shown = ", ".join(f"{token_id} {names[token_id]!r}" for token_id in ids[:_SHOWN_IDS])
        yield hit(_DRAFT, count=len(ids), shown=shown)


def _sizes_for_logits(deployment: Deployment) -> Iterable[Hit]:
    sizes, speculation = _sizes(deployment), deployment.speculation
    if sizes is None or speculation is None or speculation.acceptance != "logits":
        return
    draft, target = sizes
    # Padding gives the draft rows; a draft with more rows than its target would need them taken away.
    padding = f"pad_draft_vocab: true (a draft head of {target} rows), or " if draft < target else ""
    if not (speculation.pad_draft_vocab and padding):
        yield hit("speculation.acceptance", draft=draft, target=target, padding=padding)


def _padded_by_modelopt(deployment: Deployment) -> Iterable[Hit]:
    """The conversion pads what it quantises itself."""
    draft, speculation = deployment.config.draft, deployment.speculation
    if draft is None or speculation is None or not speculation.pad_draft_vocab or deployment.backend == "llmapi":
        return
    if draft.quantization in MODELOPT_QUANTIZATIONS:
        yield hit("speculation.pad_draft_vocab", quantization=draft.quantization)


def _sizes_differ(deployment: Deployment) -> Iterable[Hit]:
    sizes, speculation = _sizes(deployment), deployment.speculation
    if sizes is None or speculation is None:
        return
    draft, target = sizes
    if speculation.pad_draft_vocab and draft < target:
        yield hit(_DRAFT, draft=draft, target=target, why=f"pad_draft_vocab gives the draft {target}")
    elif speculation.acceptance == "token":
        yield hit(_DRAFT, draft=draft, target=target, why="acceptance: token compares ids only")


def _sizes(deployment: Deployment) -> tuple[int, int] | None:
    """(draft's, target's) vocabulary size when both are known and differ."""
    if not deployment.specs.keys() >= {"draft", "target"}:
        return None
    draft, target = deployment.specs["draft"].vocab_size, deployment.specs["target"].vocab_size
    return (draft, target) if draft != target else None


def _tokenizer_beyond_model(deployment: Deployment) -> Iterable[Hit]:
    for role, tokenizer in deployment.tokenizers.items():
        spec = deployment.specs.get(role)
        if spec is not None and tokenizer.max_id >= spec.vocab_size:
            yield hit(f"{role}.checkpoint", role=role, largest=tokenizer.max_id, size=spec.vocab_size)


def _lengths(deployment: Deployment) -> Iterable[Hit]:
    if deployment.specs.keys() >= {"draft", "target"}:
        draft, target = deployment.specs["draft"].max_seq_len, deployment.specs["target"].max_seq_len
        if draft < target:
            yield hit(_DRAFT, draft=draft, target=target)


def _templates(deployment: Deployment) -> Iterable[Hit]:
    if deployment.pair is not None and deployment.pair.chat_template:
        yield hit(_DRAFT)


PAIR_RULES: tuple[Rule[Deployment], ...] = (
    Rule(
        code="PAIR-TOKENIZER",
        severity="error",
        looks_at="pair",
        when="an id of ordinary text means different pieces in the two vocabularies",
        cause="{count} ids mean different text: {shown}",
        fix="choose a draft of the target's family, e.g. Llama-3.2-1B for Llama-3.1-8B",
        source="token ids pass between the models unchanged",
        find=_pieces,
        example=hit(_DRAFT, count=2, shown="id 5: 'b' in the draft, 'c' in the target"),
    ),
    Rule(
        code="PAIR-SPECIAL",
        severity="warning",
        looks_at="pair",
        when="only special tokens differ, e.g. a reserved one that a later release gave a name",
        cause="{count} special ids differ: {shown}",
        fix="nothing to do when prompts do not use them; else drafts are rejected around them",
        source="Llama 3 and 3.1 differ so in four reserved ids",
        find=_special,
        example=hit(_DRAFT, count=1, shown="id 128004: '<|a|>' in the draft, '<|b|>' in the target"),
    ),
    Rule(
        code="PAIR-SEGMENTATION",
        severity="warning",
        looks_at="pair",
        when="the ids agree, but merges, scores, normaliser, pre-tokenizer or byte fallback differ",
        cause="the two tokenizers cut text differently: {parts}; the draft sees cuts it was not trained on",
        fix="expect lower acceptance, and measure it with `trtkit bench`; only the target's tokenizer is served",
        source="tokenizer.json of both",
        find=_segmentation,
        example=hit(_DRAFT, parts="merges, normalizer"),
    ),
    Rule(
        code="PAIR-DRAFT-IDS",
        severity="error",
        looks_at="pair",
        when="the target's tokenizer has ids beyond the draft's vocabulary",
        cause="the target's tokenizer goes up to id {largest}, the draft has {size} embedding rows",
        fix="choose a draft whose config.json says vocab_size of at least {largest} + 1",
        source="the draft reads every token that the target writes",
        find=_unknown_to_draft,
        example=hit(_DRAFT, largest=128255, size=128000),
    ),
    Rule(
        code="PAIR-TARGET-IDS",
        severity="error",
        looks_at="pair",
        when="the draft's tokenizer has ids beyond the target's vocabulary",
        cause="the draft's tokenizer goes up to id {largest}, the target has {size} embedding rows",
        fix="choose a draft whose tokenizer ends below id {size}",
        source="the target verifies every token that the draft proposes",
        find=_unknown_to_target,
        example=hit(_DRAFT, largest=152063, size=151936),
    ),
    Rule(
        code="PAIR-EXTRA",
        severity="warning",
        looks_at="pair",
        when="the target's tokenizer has tokens that the draft's lacks, within the draft's vocabulary size",
        cause="{count} tokens of the target are unknown to the draft: {shown}",
        fix="expect rejected drafts around them; a draft of the same release knows them",
        source="tokenizer.json of both",
        find=_only_target,
        example=hit(_DRAFT, count=2, shown="151667 '<think>', 151668 '</think>'"),
    ),
    Rule(
        code="PAIR-VOCAB",
        severity="error",
        looks_at="pair",
        when="acceptance: logits with different vocabulary sizes, and the draft's is not padded to the target's",
        cause="logits of {draft} entries (draft) cannot be compared with logits of {target} entries (target)",
        fix="write {padding}acceptance: token",
        source="TensorRT-LLM issue #2789",
        find=_sizes_for_logits,
        example=hit(
            "speculation.acceptance",
            draft=151936,
            target=152064,
            padding="pad_draft_vocab: true (a draft head of 152064 rows), or ",
        ),
    ),
    Rule(
        code="PAIR-PADDING",
        severity="error",
        looks_at="pair",
        when="pad_draft_vocab with a draft that nvidia-modelopt quantises",
        cause="the draft is {quantization}: nvidia-modelopt exports it, and trtkit pads only what it quantises itself",
        fix="write draft.quantization: none, fp8 or int8_weight_only, or acceptance: token without padding",
        source="trtkit's conversion",
        find=_padded_by_modelopt,
        example=hit("speculation.pad_draft_vocab", quantization="int4_awq"),
    ),
    Rule(
        code="PAIR-PADDED",
        severity="note",
        looks_at="pair",
        when="vocabulary sizes that differ by padding, with acceptance: token or with pad_draft_vocab",
        cause="the vocabularies have {draft} (draft) and {target} (target) rows; the ids in use agree",
        fix="nothing to do; {why}",
        source="Qwen pads 151646 ids to 151936 or 152064",
        find=_sizes_differ,
        example=hit(_DRAFT, draft=151936, target=152064, why="acceptance: token compares ids only"),
    ),
    tokenizer_beyond_model(_tokenizer_beyond_model, hit("target.checkpoint", role="target", largest=32016, size=32000)),
    Rule(
        code="PAIR-LENGTH",
        severity="note",
        looks_at="pair",
        when="the draft knows fewer positions than its target",
        cause="the draft knows {draft} positions, the target {target}; the pair is limited to the draft's",
        fix="nothing to do while limits stay within {draft} tokens",
        source="max_position_embeddings of both",
        find=_lengths,
        example=hit(_DRAFT, draft=2048, target=4096),
    ),
    Rule(
        code="PAIR-TEMPLATE",
        severity="note",
        looks_at="pair",
        when="the chat templates differ",
        cause="draft and target have different chat templates; the target's is used",
        fix="nothing to do; acceptance is highest when the draft was trained with the same one",
        source="tokenizer_config.json of both",
        find=_templates,
        example=hit(_DRAFT),
    ),
)
