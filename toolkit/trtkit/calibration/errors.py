"""What quantising costs one layer's tensors, measured on the tokens a pass kept. Knows granularities, no thresholds.

An error is noise over signal, root mean squares both: 0.03 means that 3 % of what counts is noise. For keys and values
the signal is what differs between tokens, x - channel mean: a constant that every key carries shifts all attention
scores alike and changes nothing, but the noise it brings does. For a linear input noise and signal are those of the
layer's output, token by token, so that a few huge tokens do not hide what the others lose. What comes back as NaN or
Inf has infinite noise.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trtkit.calibration.number_formats import LARGEST, Format
from trtkit.calibration.records import INT4_CACHE, KEPT, KEYS, VALUES
from trtkit.calibration.skeleton import FilledLayer
from trtkit.calibration.statistics import TensorStatistics
from trtkit.reference.kv_cache.formats import Int4
from trtkit.reference.kv_cache.options import INT4_GROUP

CACHE_FORMATS: tuple[Format, ...] = ("fp8", "int8", "int4")
INPUT_FORMATS: tuple[Format, ...] = ("fp8", "int8")
SMOOTHING = 0.5
_MEASURED_OUTPUTS = 256


def measure_layer(
    filled: FilledLayer, statistics: Mapping[str, TensorStatistics], aliases: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """A Measure (collect.py): errors of keys, values and linear inputs by "<format>/<granularity>"."""
    shared = max(statistics[KEYS].record().amax, statistics[VALUES].record().amax)
    errors = {name: cache_errors(statistics[name], shared) for name in (KEYS, VALUES)}
    linears = filled.linears()
    for heard in dict.fromkeys(aliases.values()):
        weights = [weight_of(linears[name]) for name, other in aliases.items() if other == heard]
        rows, amax = statistics[heard].rows, statistics[heard].record().channel_amax
        errors[heard] = input_errors(torch.from_numpy(rows), torch.cat(weights), torch.from_numpy(amax))
    return errors


def cache_errors(statistics: TensorStatistics, shared_amax: float) -> dict[str, float]:
    """T tokens, H heads, D head_dim. Granularities of the scale: shared (one for keys and values), tensor, head,
    channel, token (one per token and head), and for FP8 unit (1.0). KEPT is the cache in 16 bits, INT4_CACHE the
    engine's own, where it has one for such heads.
    """
    record = statistics.record()
    rows = torch.from_numpy(statistics.rows).view(len(statistics.rows), record.num_heads, -1)
    amax = torch.from_numpy(record.channel_amax).view(record.num_heads, -1)
    signal = rms(rows - torch.from_numpy(record.channel_mean).float().view_as(amax))
    limits = {
        "shared": torch.tensor(shared_amax),
        "tensor": amax.max(),
        "head": amax.amax(1, keepdim=True),
        "channel": amax,
        "token": rows.abs().amax(-1, keepdim=True),
    }
    errors = {
        f"{kind}/{name}": _ratio(rms(quantized(rows, limit, kind) - rows), signal)
        for kind in CACHE_FORMATS
        for name, limit in limits.items()
    }
    others = {"fp8/unit": quantized(rows, torch.tensor(LARGEST["fp8"]), "fp8"), KEPT: rows.bfloat16().float()}
    if takes_int4_cache(rows.shape[2]):
        others[INT4_CACHE] = _through_int4_cache(rows)
    return errors | {name: _ratio(rms(there - rows), signal) for name, there in others.items()}


def takes_int4_cache(head_dim: int) -> bool:
    """Whether the engine has an INT4 cache for such heads: groups of channels fill them."""
    return head_dim % min(INT4_GROUP, head_dim) == 0


def _through_int4_cache(rows: Tensor) -> Tensor:
    """[T, H, D] as it comes back."""
    cache = Int4(rows.shape[1], rows.shape[2], torch.float32)
    return cache.decode(0, cache.encode(0, torch.stack([rows, rows], 1).flatten(1)))[:, 0]


def input_errors(rows: Tensor, weight: Tensor, channel_amax: Tensor) -> dict[str, float]:
    """T tokens, I inputs, O outputs: rows [T, I], weight [O, I]. The weight is kept exact but for `smooth`.

    channel_amax [I] is over all that was measured: scales come from it, also where its token is not among the rows.

    Granularities of the input's scale: tensor, token, channel (which no GEMM can do, but shows what is possible), and
    smooth: SmoothQuant (Xiao et al. 2023), inputs divided and weights multiplied by max|x|^a / max|w|^(1-a). KEPT is
    the input in 16 bits.
    """
    weight = weight[:: max(1, len(weight) // _MEASURED_OUTPUTS)].float()
    exact = rows @ weight.T
    limits = {
        "tensor": channel_amax.max(),
        "token": rows.abs().amax(1, keepdim=True),
        "channel": channel_amax,
    }
    errors = {KEPT: output_noise(rows.bfloat16().float() @ weight.T, exact)}
    for kind in INPUT_FORMATS:
        for name, limit in limits.items():
            errors[f"{kind}/{name}"] = output_noise(quantized(rows, limit, kind) @ weight.T, exact)
        smoothing = smoothing_factors(channel_amax, weight)
        smooth_limit = (channel_amax / smoothing).max()
        product = quantized(rows / smoothing, smooth_limit, kind) @ _per_output(weight * smoothing, kind).T
        errors[f"{kind}/smooth"] = output_noise(product, exact)
    return errors


def output_noise(product: Tensor, exact: Tensor) -> float:
    """Noise over signal of each token's output [T, O], root mean square over tokens that have output."""
    noise, signal = (product - exact).norm(dim=1), exact.norm(dim=1)
    return _ratio(rms((noise / signal)[signal > 0]), 1.0) if bool((signal > 0).any()) else 0.0


def smoothing_factors(channel_amax: Tensor, weight: Tensor) -> Tensor:
    """What SmoothQuant divides each input channel by: [I]; 1 where the channel or its weights are all zero."""
    weights = weight.float().abs().amax(0)
    factors = channel_amax.pow(SMOOTHING) / weights.pow(1 - SMOOTHING)
    return torch.where((channel_amax > 0) & (weights > 0), factors, torch.ones(()))


def quantized(x: Tensor, limit: Tensor, kind: Format) -> Tensor:
    """What comes back from `kind` when `limit` (broadcast) becomes the largest code; float32."""
    scale = torch.where(limit > 0, limit / LARGEST[kind], torch.ones(())).to(x.device)
    scaled = (x / scale).clamp(-LARGEST[kind], LARGEST[kind])
    codes = scaled.to(torch.float8_e4m3fn).float() if kind == "fp8" else scaled.round()
    return codes * scale


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.double().pow(2).mean().sqrt())


def weight_of(module: nn.Module) -> Tensor:
    """The weight as [outputs, inputs]; GPT-2's Conv1D stores it the other way."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return (weight.T if isinstance(module, Conv1D) else weight).detach().cpu()


def _per_output(weight: Tensor, kind: Format) -> Tensor:
    return quantized(weight, weight.abs().amax(1, keepdim=True), kind)


def _ratio(noise: float, signal: float) -> float:
    if math.isnan(noise):
        return math.inf
    return noise / signal if signal > 0 else 0.0
