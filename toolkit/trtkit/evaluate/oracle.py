"""The oracle: transformers on the original checkpoint, greedy, one sequence at a time. Knows no deployment."""

import inspect
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import Tensor

from trtkit import __version__
from trtkit.errors import CheckpointError, RequestError
from trtkit.evaluate.prompts import Prompt
from trtkit.evaluate.record import OracleStep

TOP_K = 64
_DIGITS = 7  # float32 holds about seven decimal digits


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the text a client sends and as the ids the model must see."""

    text: str
    prompt_ids: tuple[int, ...]


class Oracle:
    """A causal language model of transformers with its tokenizer.

    No padding, no batch, no code from the checkpoint: what it answers depends on the checkpoint and the dtype alone.
    """

    def __init__(self, model: Any, tokenizer: Any, dtype: str, weights_dtype: str) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._head = model.get_output_embeddings().weight.detach()
        accepted = inspect.signature(model.forward).parameters
        # transformers 5.x renamed the argument and the output field, and warns about the old name.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.dtype = dtype
        self.weights_dtype = weights_dtype

    @classmethod
    def load(cls, folder: Path, *, dtype: str = "float32", device: str = "cpu") -> Self:
        """Load a Hugging Face folder. Raises CheckpointError when transformers cannot."""
        offline = {"local_files_only": True, "trust_remote_code": False}
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **offline)
            auto: Any = transformers.AutoModelForCausalLM
            with _no_bars():
                model = auto.from_pretrained(
                    folder, config=config, dtype=getattr(torch, dtype), use_safetensors=True, **offline
                ).to(device)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **offline)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise CheckpointError(
                f"transformers cannot load it: {error}",
                "check that the folder holds config.json, safetensors and tokenizer files of a supported architecture",
                code="ORACLE-LOAD",
                where=str(folder),
            ) from error
        weights_dtype = str(config.dtype or torch.float32).removeprefix("torch.")
        return cls(model.eval(), tokenizer, dtype, weights_dtype)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self._model.config.get_text_config().num_hidden_layers)

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

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Render the chat template where there are messages, and tokenize as the checkpoint's tokenizer does.

        Raises RequestError for chat messages without a chat template, and for a prompt without tokens.
        """
        if prompt.text is not None:
            text, prompt_ids = prompt.text, self._tokenizer(prompt.text)["input_ids"]
        else:
            text = self._render_chat(prompt)
            prompt_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if not prompt_ids:
            raise RequestError(f"{prompt.name} has no tokens", "give a prompt that is not empty")
        return EncodedPrompt(text, tuple(prompt_ids))

    def _render_chat(self, prompt: Prompt) -> str:
        if not self._tokenizer.chat_template:
            raise RequestError(
                f"{prompt.name}: the tokenizer has no chat template", 'give "text" instead of "messages"'
            )
        messages = [{"role": role, "content": content} for role, content in prompt.messages]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def answer(
        self, prompt_ids: Sequence[int], max_new_tokens: int, end_ids: Sequence[int]
    ) -> Iterator[tuple[int, OracleStep]]:
        """Yield (token, step) of the greedy answer; up to the first of end_ids or max_new_tokens."""
        cache: Any = None
        pending = list(prompt_ids)
        for _ in range(max_new_tokens):
            state, logits, cache = self._forward(pending, cache)
            step = self._describe(state, logits)
            token = step.token_ids[0]
            yield token, step
            if token in end_ids:
                return
            pending = [token]

    @torch.inference_mode()
    def _forward(self, token_ids: Sequence[int], cache: Any) -> tuple[Tensor, Tensor, Any]:
        """One pass over token_ids after what the cache holds: the last state, its logits, the cache.

        D hidden size, V vocabulary:  state [D], logits [V]
        """
        seen: list[Tensor] = []
        hook = self._model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            ids = torch.tensor([list(token_ids)], device=self._head.device)
            out = self._model(input_ids=ids, use_cache=True, **{self._cache_name: cache}, **self._last_only)
        finally:
            hook.remove()
        return seen[-1][0, -1], out.logits[0, -1], out[self._cache_name]

    @torch.inference_mode()
    def _describe(self, state: Tensor, logits: Tensor) -> OracleStep:
        """The k best tokens with gaps and distances; equal logits are ordered by token id, as argmax takes them."""
        wide = logits.float()
        order = torch.sort(wide, descending=True, stable=True).indices[:TOP_K]
        rows = self._head[order].float()
        return OracleStep(
            best_logit=_rounded(wide[order[0]].item()),
            state_norm=_rounded(state.float().norm().item()),
            token_ids=tuple(order.tolist()),
            gaps=tuple(_rounded(gap) for gap in (wide[order[0]] - wide[order]).tolist()),
            distances=tuple(_rounded(distance) for distance in (rows[:1] - rows).norm(dim=1).tolist()),
        )


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal while it loads."""
    bars: Any = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _rounded(value: float) -> float:
    """The value with the digits that float32 carries, so that the record does not store noise."""
    return float(f"{value:.{_DIGITS}g}")
