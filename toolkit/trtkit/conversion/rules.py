"""Rule and Part: the words weight maps are written in. Knows no family and no numbers.

A map is data: each Rule makes one tensor of the TensorRT-LLM checkpoint by stacking rectangles (Parts) of source
tensors on top of each other. Sizes are symbols ("q", "kv", "inter", ...) that a model's dimensions resolve.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Cut = Literal["whole", "rows", "columns", "kv_heads", "moe_rows", "moe_columns", "vocab", "embedding"]
"""How a part is divided over the tensor ranks.

whole        every rank gets all of it
rows         equal runs of rows (outputs); columns: equal runs of columns (inputs)
kv_heads     rows by key-value head, a head given to several ranks when there are more ranks than heads
moe_rows, moe_columns   like rows and columns, over the moe_tp ranks
vocab        ceil(vocab / ranks) rows, the last ranks padded with zeros
embedding    whole, vocab or columns, as the options say
"""

Kind = Literal["linear", "expert", "plain", "norm", "router", "head", "embedding"]
"""linear and expert may be quantised; a norm may get its 1 added; the router is float32; the rest is cast."""

When = Literal["always", "qkv_bias", "dense_bias", "mlp_bias", "qk_norm", "shared_expert", "tied", "untied"]
Stage = Literal["first", "last", "layer", "sparse", "dense"]


class Part(NamedTuple):
    """Rows `after` .. `after` + `rows` of a source tensor (in the target's orientation when `transposed`).

    source may hold {i} (the layer) and {e} (the expert); `rows` and `after` are symbols, sums written "q+kv".
    """

    source: str
    rows: str
    cut: Cut
    after: str = ""
    transposed: bool = False


@dataclass(frozen=True)
class Rule:
    """One target tensor: its name ({i} is the layer within the stage), its parts, and their common width.

    columns is the symbol of the width, "" for vectors. stage says which pipeline stage holds it, or which layers.
    """

    target: str
    parts: tuple[Part, ...]
    columns: str
    kind: Kind = "linear"
    stage: Stage = "layer"
    when: When = "always"


@dataclass(frozen=True)
class WeightMap:
    """All rules of one family.

    prefixes are tried in order: some checkpoints were saved without the outer module's name. ignored are patterns of
    source names that carry no weights (masks, rope tables).
    """

    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ("*.rotary_emb.*",)
