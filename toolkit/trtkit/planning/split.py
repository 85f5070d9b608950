"""Split: how one model is spread over ranks, and which layers, heads and experts one rank holds. Knows no tensors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """Tensor, pipeline and expert parallelism; expert divides tensor. Rank = stage * tensor + tensor rank."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def num_ranks(self) -> int:
        """Files of the checkpoint, and GPUs that the model takes."""
        return self.tensor * self.pipeline

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.tensor

    def layers(self, rank: int, num_layers: int) -> range:
        """Layers of a rank's stage; when they do not divide evenly, the first stages get one more each."""
        stage = self.stage(rank)
        share, more = num_layers // self.pipeline, num_layers % self.pipeline
        first = sum(share + (before < more) for before in range(stage))
        return range(first, first + share + (stage < more))

    def kv_heads(self, num_kv_heads: int) -> int:
        """KV heads of one rank; with more ranks than heads each rank still holds one."""
        return max(1, num_kv_heads // self.tensor)

    @property
    def expert_cut(self) -> int:
        """Ranks that one expert is cut over."""
        return self.tensor // self.expert
