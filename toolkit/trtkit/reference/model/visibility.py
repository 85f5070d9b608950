"""What layers see and what the cache therefore keeps: the model's windows and the options together. No tensors."""

from dataclasses import replace
from typing import NamedTuple

from trtkit.errors import InputError
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.reference.kv_cache.retention import Retention
from trtkit.reference.model.attention_rule import AttentionRule
from trtkit.reference.model.config import ModelConfig


class Visibility(NamedTuple):
    """One rule for every layer, and what has to be kept for all of them."""

    rules: tuple[AttentionRule, ...]
    retention: Retention


def visibility(config: ModelConfig, cache: CacheOptions) -> Visibility:
    """Narrow every layer's window to the cache's. A model all of whose layers have windows bounds its cache by itself.

    Raises InputError KV-WINDOW where the model's positions do not go on without end, or its attention takes no sinks.
    """
    rules = config.attention_rules
    if cache.window_tokens is not None:
        _check(config, cache)
        rules = tuple(
            replace(rule, window=min(rule.window or cache.window_tokens, cache.window_tokens)) for rule in rules
        )
    windows = [rule.window for rule in rules if rule.window is not None]
    kept = max(windows) if len(windows) == len(rules) else None
    return Visibility(rules, Retention(kept, cache.sink_tokens, cache.heavy_tokens))


def _check(config: ModelConfig, cache: CacheOptions) -> None:
    rules = config.attention_rules
    is_apart = cache.sink_tokens > 0 or cache.heavy_tokens > 0
    problem = {
        "positions that are learned": not config.ropes,
        "rope scaling that grows with the text": any(rope.kind == "dynamic" for rope in config.ropes),
        "windows of its own beside sinks": is_apart and any(rule.window is not None for rule in rules),
        "capped scores beside sinks": is_apart and any(rule.soft_cap is not None for rule in rules),
    }
    if any(problem.values()):
        raise InputError(
            f"a bounded cache cannot serve {config.architecture} with "
            + ", ".join(what for what, holds in problem.items() if holds),
            "leave window_tokens, sink_tokens and heavy_tokens out;"
            " strategy rolling serves endless sessions with every model",
            code="KV-WINDOW",
        )
