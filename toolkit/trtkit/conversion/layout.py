"""Layout: the rules of a family applied to one model and one set of ranks: which bytes of which source go where.

Pure: knows sizes and names, opens no file. A Target is one tensor of one rank; its Slices, stacked in order, are its
rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trtkit.checkpoints.model_spec import ModelSpec
from trtkit.conversion.options import ConversionOptions
from trtkit.conversion.rules import Kind, Part, Rule, WeightMap


@dataclass(frozen=True)
class Slice:
    """A rectangle of a source tensor, in the source's own orientation.

    rows and columns are [start, stop); columns is None for vectors. In the target mean_rows rows follow it, each the
    mean of all rows of the source, then padding_rows zero rows. A transposed slice is turned before it is stacked.
    """

    source: str
    rows: tuple[int, int]
    columns: tuple[int, int] | None
    transposed: bool = False
    padding_rows: int = 0
    mean_rows: int = 0

    @property
    def target_shape(self) -> tuple[int, ...]:
        """[rows, columns] (or [rows]) that this slice, with what follows it, takes in the target."""
        height, more = self.rows[1] - self.rows[0], self.mean_rows + self.padding_rows
        if self.columns is None:
            return (height + more,)
        width = self.columns[1] - self.columns[0]
        return (width + more, height) if self.transposed else (height + more, width)


@dataclass(frozen=True)
class Target:
    """One tensor of one rank: slices stacked on top of each other; `stacked` experts make a leading axis.

    layer counts over the whole model, the number in `name` within the stage; -1 outside the layers.
    """

    name: str
    kind: Kind
    layer: int
    slices: tuple[Slice, ...]
    stacked: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape before any quantisation."""
        shapes = [piece.target_shape for piece in self.slices]
        rows = sum(shape[0] for shape in shapes)
        inner = shapes[0][1:]
        return (self.stacked, rows // self.stacked, *inner) if self.stacked else (rows, *inner)


@dataclass(frozen=True)
class Rank:
    """Where one rank stands. moe_tp ranks cut each expert; moe_ep groups hold different experts."""

    tensor_rank: int
    stage: int
    options: ConversionOptions

    @property
    def index(self) -> int:
        """The number in the file name."""
        return self.stage * self.options.tensor_parallel + self.tensor_rank

    @property
    def moe_tensor_parallel(self) -> int:
        """Ranks that one expert is cut over."""
        return self.options.tensor_parallel // self.options.expert_parallel

    def layers(self, num_layers: int) -> range:
        """The layers of this stage; the first stages get the extra ones (torch.tensor_split)."""
        base, extra = divmod(num_layers, self.options.pipeline_parallel)
        start = self.stage * base + min(self.stage, extra)
        return range(start, start + base + (self.stage < extra))

    def experts(self, num_experts: int) -> range:
        """The experts of this rank: a contiguous block per moe_ep rank."""
        per_rank = num_experts // self.options.expert_parallel
        start = self.tensor_rank % self.options.expert_parallel * per_rank
        return range(start, start + per_rank)


def all_ranks(options: ConversionOptions) -> list[Rank]:
    """Every rank, in the order of the files."""
    stages, width = options.pipeline_parallel, options.tensor_parallel
    return [Rank(tensor_rank, stage, options) for stage in range(stages) for tensor_rank in range(width)]


def dimensions_of(spec: ModelSpec) -> dict[str, int]:
    """The sizes that the symbols of the weight maps stand for."""
    moe = spec.moe
    return {
        "one": 1,
        "hidden": spec.hidden_size,
        "q": spec.num_q_heads * spec.head_dim,
        "kv": spec.num_kv_heads * spec.head_dim,
        "head": spec.head_dim,
        "inter": spec.intermediate_size,
        "vocab": spec.vocab_size,
        "positions": spec.max_seq_len,
        "experts": moe.num_experts if moe else 0,
        "moe_inter": moe.intermediate_size if moe else 0,
        "shared_inter": moe.shared_intermediate_size if moe else 0,
    }


def rules_for(spec: ModelSpec, weight_map: WeightMap) -> list[Rule]:
    """The rules whose condition the model meets."""
    holds = {
        "always": True,
        "qkv_bias": spec.attention_bias,
        "dense_bias": spec.attention_bias and not spec.family.startswith("qwen2"),
        "mlp_bias": spec.mlp_bias,
        "qk_norm": spec.qk_norm,
        "shared_expert": spec.moe is not None and spec.moe.shared_intermediate_size > 0,
        "tied": spec.tie_word_embeddings,
        "untied": not spec.tie_word_embeddings,
    }
    return [rule for rule in weight_map.rules if holds[rule.when]]


class RankLayout:
    """Applies the rules of one model to one rank."""

    def __init__(self, spec: ModelSpec, rules: list[Rule], rank: Rank) -> None:
        self._spec = spec
        self._rules = rules
        self._rank = rank
        self._sizes = dimensions_of(spec)

    def targets(self) -> Iterator[Target]:
        """Every tensor of the rank, in the order it is written: the order of the layers."""
        is_first = self._rank.stage == 0
        is_last = self._rank.stage == self._rank.options.pipeline_parallel - 1
        if is_first:
            yield from (self._target(rule, -1, 0) for rule in self._rules if rule.stage == "first")
        for local, layer in enumerate(self._rank.layers(self._spec.num_layers)):
            sparse = self._spec.moe is not None and self._spec.moe.is_sparse(layer)
            stages = ("layer", "sparse" if sparse else "dense")
            yield from (self._target(rule, layer, local) for rule in self._rules if rule.stage in stages)
        if is_last:
            yield from (self._target(rule, -1, 0) for rule in self._rules if rule.stage == "last")

    def _target(self, rule: Rule, layer: int, local: int) -> Target:
        name = rule.target.replace("{i}", str(local))
        if rule.kind != "expert":
            slices = tuple(self._slice(rule, part, part.source.replace("{i}", str(layer))) for part in rule.parts)
            return Target(name, rule.kind, layer, slices)
        experts = self._rank.experts(self._sizes["experts"])
        stacked = tuple(
            self._slice(rule, part, part.source.replace("{i}", str(layer)).replace("{e}", str(expert)))
            for expert in experts
            for part in rule.parts
        )
        return Target(name, rule.kind, layer, stacked, len(experts))

    def _slice(self, rule: Rule, part: Part, source: str) -> Slice:
        height, width = self._sizes[part.rows], self._sizes[rule.columns] if rule.columns else None
        offset = sum(self._sizes[symbol] for symbol in part.after.split("+")) if part.after else 0
        if part.rows == "vocab":
            return self._vocabulary(part, source, height, width)
        rows = self._row_range(part, height)
        rows = (rows[0] + offset, rows[1] + offset)
        columns = None if width is None else self._column_range(part, width)
        if part.transposed and columns is not None:
            rows, columns = columns, rows
        return Slice(source, rows, columns, part.transposed)

    def _vocabulary(self, part: Part, source: str, height: int, width: int | None) -> Slice:
        """The rank's share of embedding or head: rows of the source, mean rows up to the size asked for, zeros."""
        rank, ranks = self._rank.tensor_rank, self._rank.options.tensor_parallel
        cut = self._embedding_cut() if part.cut == "embedding" else part.cut
        total = padded_vocab_size(self._spec, self._rank.options)
        share = -(-total // ranks) if cut == "vocab" else total
        first = rank * share if cut == "vocab" else 0
        start, stop, end = min(first, height), min(first + share, height), min(first + share, total)
        mean_rows = max(0, end - max(first, height))
        columns = None if width is None else self._column_range(part, width)
        return Slice(source, (start, stop), columns, False, share - (stop - start) - mean_rows, mean_rows)

    def _row_range(self, part: Part, height: int) -> tuple[int, int]:
        """The rank's rows of a segment."""
        rank, ranks = self._rank.tensor_rank, self._rank.options.tensor_parallel
        if part.cut == "rows":
            return _run(height, rank, ranks)
        if part.cut == "moe_rows":
            return _run(height, rank // self._rank.options.expert_parallel, self._rank.moe_tensor_parallel)
        if part.cut == "kv_heads":
            return self._kv_rows(rank, ranks)
        return 0, height

    def _kv_rows(self, rank: int, ranks: int) -> tuple[int, int]:
        """Key-value heads of a rank: a run of them, or the one head it shares with its neighbours."""
        heads, head_dim = self._spec.num_kv_heads, self._spec.head_dim
        if heads >= ranks:
            return _run(heads * head_dim, rank, ranks)
        head = rank * heads // ranks
        return head * head_dim, (head + 1) * head_dim

    def _column_range(self, part: Part, width: int) -> tuple[int, int]:
        rank, options = self._rank.tensor_rank, self._rank.options
        cut = self._embedding_cut() if part.cut == "embedding" else part.cut
        if cut == "columns":
            return _run(width, rank, options.tensor_parallel)
        if cut == "moe_columns":
            return _run(width, rank // options.expert_parallel, self._rank.moe_tensor_parallel)
        return 0, width

    def _embedding_cut(self) -> str:
        if not parallel_embedding(self._spec, self._rank.options):
            return "whole"
        return "columns" if self._rank.options.embedding_sharding_dim else "vocab"


def padded_vocab_size(spec: ModelSpec, options: ConversionOptions) -> int:
    """The vocabulary of the converted model."""
    return max(spec.vocab_size, options.pad_vocab_to or 0)


def parallel_embedding(spec: ModelSpec, options: ConversionOptions) -> bool:
    """Whether the embedding is cut: when asked for, and always for Gemma on several ranks (its builder insists)."""
    return options.use_parallel_embedding or (spec.family.startswith("gemma") and options.tensor_parallel > 1)


def _run(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """Equal runs; the caller has proven that `ranks` divides `total`."""
    share = total // ranks
    return rank * share, (rank + 1) * share
