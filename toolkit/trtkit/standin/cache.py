"""The KV cache that a repository and its engine directory ask for, in the reference engine's terms. Loads nothing."""

from trtkit.engines.inspect import EngineInfo
from trtkit.errors import InputError
from trtkit.reference.kv_cache.options import CacheOptions
from trtkit.serving.arguments import ModelArguments


def cache_options(info: EngineInfo, arguments: ModelArguments) -> CacheOptions:
    """The block size is the engine's, the format its checkpoint's; reuse, window and sinks are parameters of the model.

    As in TensorRT-LLM, max_attention_window_size counts the sinks too. Raises InputError PARAM-WINDOW when nothing is
    left for the window.
    """
    seen, sinks = arguments.number("max_attention_window_size", 0), arguments.number("sink_token_length", 0)
    if sinks and seen <= sinks:
        raise InputError(
            f"sink_token_length is {sinks}, max_attention_window_size {seen or 'not set'}",
            "set a window that is larger than the sinks, which it includes",
            code="PARAM-WINDOW",
            where=f"{arguments.name}/config.pbtxt",
        )
    return CacheOptions(
        block_size=info.spec.block_size,
        reuse="tokens" if arguments.flag("enable_kv_cache_reuse", default=True) else "off",
        window_tokens=seen - sinks or None,
        sink_tokens=sinks,
    )
