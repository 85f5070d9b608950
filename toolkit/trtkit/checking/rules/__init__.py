"""The tables of rules, by what they look at."""

from trtkit.checking.rules.answers import ANSWER_RULES
from trtkit.checking.rules.gpu import GPU_RULES
from trtkit.checking.rules.kv_cache import KV_RULES
from trtkit.checking.rules.limits import LIMIT_RULES
from trtkit.checking.rules.llmapi import LLMAPI_RULES
from trtkit.checking.rules.memory import MEMORY_RULES
from trtkit.checking.rules.model import MODEL_RULES
from trtkit.checking.rules.pairing import PAIR_RULES
from trtkit.checking.rules.sinks import SINK_RULES
from trtkit.checking.rules.speculation import SPECULATION_RULES
from trtkit.checking.rules.version_limits import LIMIT_OF_VERSION_RULES
from trtkit.checking.rules.versions import VERSION_RULES
from trtkit.checking.rules.weight_format import WEIGHT_FORMAT_RULES

CONFIG_RULES = (
    *VERSION_RULES,
    *GPU_RULES,
    *MODEL_RULES,
    *WEIGHT_FORMAT_RULES,
    *PAIR_RULES,
    *SPECULATION_RULES,
    *KV_RULES,
    *ANSWER_RULES,
    *SINK_RULES,
    *LIMIT_RULES,
    *MEMORY_RULES,
    *LLMAPI_RULES,
    *LIMIT_OF_VERSION_RULES,
)

__all__ = ["CONFIG_RULES"]
