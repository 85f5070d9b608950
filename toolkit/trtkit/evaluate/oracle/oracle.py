"""The oracle: transformers on the original checkpoint, greedy. Knows no deployment."""

import inspect
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import Tensor

from trtkit import __version__
from trtkit.checkpoints.weights import open_weights
from trtkit.errors import CheckpointError
from trtkit.evaluate.oracle.matrix_rounding import store_rounded
from trtkit.evaluate.oracle.model import load_model
from trtkit.evaluate.oracle.record import OracleStep
from trtkit.evaluate.oracle.rolling import RollingRule
from trtkit.evaluate.oracle.scored_token import ScoredToken
from trtkit.evaluate.oracle.tolerance import Dtype

TOP_K = 64
_DIGITS = 7  # float32 holds about seven decimal digits


class Oracle:
    """A causal language model of transformers; no code from the checkpoint is run.

    Without a batch there is no padding: then what it answers depends on the checkpoint and the dtype alone.
    quantization: the format that its matrices were rounded to.
    """

    def __init__(self, model: Any, dtype: Dtype, weights_dtype: str, quantization: str = "none") -> None:
        self.model = model
        self._head = model.get_output_embeddings().weight.detach()
        accepted = inspect.signature(model.forward).parameters
        # transformers 5.x renamed the argument and the output field, and warns about the old name.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.dtype = dtype
        self.weights_dtype = weights_dtype
        self.quantization = quantization

    @classmethod
    def load(cls, folder: Path, *, dtype: Dtype = "float32", device: str = "cpu", quantization: str = "none") -> Self:
        """Load a Hugging Face folder, its matrices rounded to a quantization. Raises what load_model does."""
        model = load_model(folder, dtype, device)
        if quantization != "none":
            store_rounded(model.base_model, quantization)
        return cls(model.eval(), dtype, _stored_dtype(folder), quantization)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """Width of the state that enters the head."""
        return int(self._head.shape[1])

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self._head.shape[0])

    @property
    def max_row_norm(self) -> float:
        """Length of the longest row of the head."""
        return _rounded(self._head.float().norm(dim=1).max().item())

    @property
    def versions(self) -> dict[str, str]:
        """What computed the answers."""
        return {
            "trtkit": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        }

    def answer(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        end_ids: Sequence[int],
        rolling: RollingRule | None = None,
    ) -> Iterator[tuple[int, OracleStep]]:
        """Yield (token, step) of the greedy answer; up to the first of end_ids or max_new_tokens.

        With a rolling rule, tokens are dropped as a deployment without drafts does, and what is kept is read anew.
        """
        cache: Any = None
        shown = pending = tuple(prompt_ids)
        for _ in range(max_new_tokens):
            kept = rolling.shown(shown, 1) if rolling is not None else shown
            if len(kept) < len(shown):
                shown, pending, cache = kept, kept, None
            state, logits, cache = self._forward(pending, cache)
            step = self.describe(state, logits)
            token = step.token_ids[0]
            yield token, step
            if token in end_ids:
                return
            shown, pending = (*shown, token), (token,)

    @torch.inference_mode()
    def follow(self, prompt_ids: Sequence[int], token_ids: Sequence[int], end_ids: Sequence[int]) -> list[ScoredToken]:
        """Score each token of a given answer after the tokens before it, in one pass. End tokens count as one."""
        num_tokens = len(token_ids)
        ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=self._head.device)
        with self._watched_head() as seen:
            logits = self.model(input_ids=ids).logits[0, -num_tokens:].float()
        states = seen[-1][0, -num_tokens:].float()
        return [
            self._score(state, row, token, end_ids) for state, row, token in zip(states, logits, token_ids, strict=True)
        ]

    def _score(self, state: Tensor, logits: Tensor, token: int, end_ids: Sequence[int]) -> ScoredToken:
        """state [D], logits [V]"""
        best = int(logits.argmax())
        said = max(end_ids, key=lambda end: logits[end].item()) if token in end_ids else token
        distance = (self._head[best].float() - self._head[said].float()).norm()
        return ScoredToken(
            oracle_token=best,
            token=said,
            gap=(logits[best] - logits[said]).item(),
            best_logit=logits[best].item(),
            state_norm=state.norm().item(),
            distance=distance.item(),
        )

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        """The logits of the token after these.  returns [V] float32"""
        return self._forward(token_ids, None)[1].float()

    @torch.inference_mode()
    def states(self, token_ids: Sequence[int], cache: Any = None) -> Tensor:
        """The states that enter the head after each of the tokens, in one pass; through this cache, if one is given.

        T tokens, D hidden size:  returns [T, D] in float32
        """
        with self._watched_head() as seen:
            self.logits(token_ids, cache)
        return seen[-1][0].float()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], cache: Any = None) -> Tensor:
        """The logits after each of the tokens, in one pass; through this cache, if one is given.

        T tokens, V vocabulary:  returns [T, V] in float32
        """
        through = {} if cache is None else {self._cache_name: cache, "use_cache": True}
        ids = torch.tensor([list(token_ids)], device=self._head.device)
        return self.model(input_ids=ids, **through).logits[0].float()  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _forward(self, token_ids: Sequence[int], cache: Any) -> tuple[Tensor, Tensor, Any]:
        """One pass over token_ids after what the cache holds: the last state, its logits, the cache.

        D hidden size, V vocabulary:  state [D], logits [V]
        """
        ids = torch.tensor([list(token_ids)], device=self._head.device)
        with self._watched_head() as seen:
            out = self.model(input_ids=ids, use_cache=True, **{self._cache_name: cache}, **self._last_only)
        return seen[-1][0, -1], out.logits[0, -1], out[self._cache_name]

    @torch.inference_mode()
    def forward_batch(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Tensor, Any]:
        """One pass over left-padded rows after what the cache holds: the last states, their logits, the cache.

        B rows, N new tokens, T tokens so far, D hidden size, V vocabulary:
            ids [B, N], mask [B, T], positions [B, N];  states [B, D], logits [B, V]
        """
        device = self._head.device
        given = {"attention_mask": mask.to(device), "position_ids": positions.to(device), self._cache_name: cache}
        with self._watched_head() as seen:
            out = self.model(input_ids=ids.to(device), use_cache=True, **given, **self._last_only)
        return seen[-1][:, -1], out.logits[:, -1], out[self._cache_name]

    @contextmanager
    def _watched_head(self) -> Iterator[list[Tensor]]:
        """A list that receives what enters the head."""
        seen: list[Tensor] = []
        hook = self.model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            yield seen
        finally:
            hook.remove()

    @torch.inference_mode()
    def describe(self, state: Tensor, logits: Tensor) -> OracleStep:
        """The k best tokens with gaps and distances; equal logits are ordered by token id, as argmax takes them."""
        wide = logits.float()
        if not torch.isfinite(wide.max()):
            raise CheckpointError(
                f"the original checkpoint answers with logits that are no numbers in {self.dtype}",
                "check its weights, or record with --dtype float32",
                code="ORACLE-NAN",
            )
        order = torch.sort(wide, descending=True, stable=True).indices[:TOP_K]
        rows = self._head[order].float()
        return OracleStep(
            best_logit=_rounded(wide[order[0]].item()),
            state_norm=_rounded(state.float().norm().item()),
            token_ids=tuple(order.tolist()),
            gaps=tuple(_rounded(gap) for gap in (wide[order[0]] - wide[order]).tolist()),
            distances=tuple(_rounded(distance) for distance in (rows[:1] - rows).norm(dim=1).tolist()),
            best_log_prob=_rounded((wide[order[0]] - wide.logsumexp(dim=0)).item()),
        )


def _stored_dtype(folder: Path) -> str:
    """The dtype that most of the checkpoint's weights are stored in."""
    num_elements: Counter[str] = Counter()
    for tensor in open_weights(folder).values():
        num_elements[tensor.dtype] += tensor.num_elements
    return num_elements.most_common(1)[0][0]


def _rounded(value: float) -> float:
    """The value with the digits that float32 carries, so that the record does not store noise."""
    return float(f"{value:.{_DIGITS}g}")
