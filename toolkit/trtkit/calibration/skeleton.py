"""Skeleton: a transformers model without weights, through which one filled layer at a time is run. Measures nothing.

Masks, rope and sliding windows are transformers' own: its forward runs with every layer but one replaced by a layer
that hands its input on, the embedding by an empty one and the final norm by nothing. So any family works that
transformers knows, and only one layer's weights are needed.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trtkit.calibration.experts import separate_experts
from trtkit.calibration.layer_source import LayerSource
from trtkit.errors import CheckpointError

_CACHE_NAMES = ("cache", "past_key_values", "past_key_value", "layer_past")


class _HandOn(nn.Module):
    """A layer that is not there."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states


class _Nothing(nn.Module):
    """An embedding of zeros that takes no memory; the layers get their input from elsewhere."""

    def __init__(self, zero: Tensor, hidden_size: int) -> None:
        super().__init__()
        self._zero = zero
        self._hidden_size = hidden_size

    def forward(self, input_ids: Tensor) -> Tensor:
        return self._zero.expand(*input_ids.shape, self._hidden_size)


class FilledLayer(nn.Module):
    """One layer with its weights, standing in the model around it, which gives it masks and positions.

    Calling it runs one sample: state [1, T, hidden] -> state after the layer. `cache` gets the layer's keys and values
    through `update(keys, values, layer, ...)` as a transformers cache does, and returns those that attention uses.
    """

    def __init__(self, skeleton: "Skeleton", number: int, layer: nn.Module) -> None:
        super().__init__()
        self.number = number
        self.layer = layer
        # Not registered as a submodule: the skeleton holds this layer.
        self._run = skeleton.run
        self._signature = inspect.signature(layer.forward)
        self._cache_name = next(name for name in _CACHE_NAMES if name in self._signature.parameters)
        self._given: tuple[Tensor, Any] | None = None
        self._result: Tensor | None = None

    def step(self, state: Tensor, cache: Any) -> Tensor:
        """The state after the layer."""
        self._given = (state, cache)
        self._run(self, state.shape[1])
        assert self._result is not None, "the model did not run its layer"
        result, self._given, self._result = self._result, None, None
        return result

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the model around calls: the given state takes the place of the model's."""
        assert self._given is not None, "call step"
        state, cache = self._given
        bound = self._signature.bind(state, *args, **kwargs)
        bound.arguments[self._cache_name] = cache
        out = self.layer(*bound.args, **bound.kwargs)
        self._result = out[0] if isinstance(out, tuple) else out
        return hidden_states

    def linears(self) -> dict[str, nn.Module]:
        """Name inside the layer -> linear module; gates of a single output are no linear layers here."""
        found = {name: module for name, module in self.layer.named_modules() if isinstance(module, nn.Linear | Conv1D)}
        return {name: module for name, module in found.items() if min(module.weight.shape) > 1}

    def release(self) -> None:
        """Give the weights back."""
        self.layer.to("meta")


class Skeleton:
    """One checkpoint, one dtype, one device. attention: transformers' name of an implementation; None is its choice."""

    def __init__(
        self,
        folder: Path,
        source: LayerSource,
        dtype: torch.dtype,
        device: str = "cpu",
        *,
        attention: str | None = None,
    ) -> None:
        self._source = source
        self._device = device
        self._dtype = dtype
        self._base: Any = _empty_model(folder, dtype, attention).base_model
        self._stack = "layers" if hasattr(self._base, "layers") else "h"
        self._layers = list(getattr(self._base, self._stack))
        setattr(self._base, self._stack, nn.ModuleList())
        self._is_gpt2 = hasattr(self._base, "wpe")
        norm_name = "ln_f" if self._is_gpt2 else "norm"
        self._norm: nn.Module = getattr(self._base, norm_name)
        setattr(self._base, norm_name, nn.Identity())
        self._head: Tensor | None = None
        for module in self._base.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self._layers)

    @torch.inference_mode()
    def embed(self, samples: Sequence[Tensor]) -> list[Tensor]:
        """The state that enters the first layer: for each sample of T ids, [1, T, hidden]. To be called once, first.

        Only the rows of the embedding that occur are read.
        """
        used, inverse = torch.unique(torch.cat(list(samples)), return_inverse=True)
        rows = self._source.rows("wte.weight" if self._is_gpt2 else "model.embed_tokens.weight", used)
        embedding = self._base.get_input_embeddings()
        embedding.padding_idx = None
        embedding.weight = self._parameter(rows)
        if self._is_gpt2:
            self._base.wpe.weight = self._parameter(self._source.outside("wpe.weight"))
        self._install(None)
        ids = torch.split(inverse, [len(sample) for sample in samples])
        states = [self._base(input_ids=i[None].to(self._device), use_cache=False).last_hidden_state for i in ids]
        self.forget_embeddings()
        return [state.cpu() for state in states]

    def forget_embeddings(self) -> None:
        """Free the embeddings; needed before `filled` when `embed` was not called."""
        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        nothing = _Nothing(zero, int(self._base.config.hidden_size))
        self._base.set_input_embeddings(nothing)
        if self._is_gpt2:
            self._base.wpe = nothing

    def filled(self, number: int, tensors: dict[str, Tensor]) -> FilledLayer:
        """Layer `number` with these weights."""
        layer = self._layers[number]
        separate_experts(layer)
        on_device = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        layer.load_state_dict(on_device, strict=True, assign=True)
        filled = FilledLayer(self, number, layer.eval())
        self._install(filled)
        return filled

    @torch.inference_mode()
    def run(self, _: FilledLayer, num_tokens: int) -> None:
        """Run the model around the installed layer on as many tokens."""
        self._base(input_ids=torch.zeros((1, num_tokens), dtype=torch.long, device=self._device), use_cache=False)

    def load_head(self, rows: Sequence[int] | None = None) -> None:
        """Read the final norm and the head, all or some rows of it; needed before `logits`."""
        outer = "ln_f" if self._is_gpt2 else "model.norm"
        names = dict(self._norm.named_parameters())
        tensors = {name: self._source.outside(f"{outer}.{name}").to(self._device) for name in names}
        self._norm.load_state_dict(tensors, strict=True, assign=True)
        embedding = "wte.weight" if self._is_gpt2 else "model.embed_tokens.weight"
        own = self._source.has("lm_head.weight")
        head = self._source.outside("lm_head.weight" if own else embedding)
        self._head = (head if rows is None else head[list(rows)]).to(self._device)

    @torch.inference_mode()
    def rotations(self, num_positions: int) -> Tensor:
        """cos + i sin of every pair, as the keys are rotated, 1 for what does not turn: [T, 1, D / 2], on the CPU."""
        config, device = self._base.config, self._device
        positions = torch.arange(num_positions, device=device)[None]
        cos, sin = self._base.rotary_emb(torch.zeros(1, dtype=torch.float32, device=device), positions)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        table = torch.ones(num_positions, 1, head_dim // 2, dtype=torch.complex64)
        pairs = cos.shape[-1] // 2
        table[:, 0, :pairs] = torch.complex(cos[0, :, :pairs].float().cpu(), sin[0, :, :pairs].float().cpu())
        return table

    @torch.inference_mode()
    def logits(self, state: Tensor) -> Tensor:
        """The state after the last layer, [1, T, hidden] -> logits [T, rows of the head] in float32."""
        assert self._head is not None, "call load_head"
        normed: Tensor = self._norm(state[0].to(self._device))
        logits = (normed @ self._head.T).float().cpu()
        cap = getattr(self._base.config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits

    def _install(self, filled: FilledLayer | None) -> None:
        stack: list[nn.Module] = [_HandOn() for _ in self._layers]
        if filled is not None:
            stack[filled.number] = filled
        setattr(self._base, self._stack, nn.ModuleList(stack))

    def _parameter(self, tensor: Tensor) -> nn.Parameter:
        return nn.Parameter(tensor.to(self._device), requires_grad=False)


def _empty_model(folder: Path, dtype: torch.dtype, attention: str | None) -> Any:
    """The model, parameters on the meta device, buffers (rope) real. Raises CheckpointError CALIB-MODEL."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto: Any = transformers.AutoModelForCausalLM
        with init_empty_weights(include_buffers=False):
            chosen = {} if attention is None else {"attn_implementation": attention}
            return auto.from_config(config, dtype=dtype, trust_remote_code=False, **chosen).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"transformers cannot make this model: {error}",
            "check config.json, or install a newer transformers",
            code="CALIB-MODEL",
            where=str(folder),
        ) from error
